// Tiles on the tensor cores: bfloat16 and float16, summed in float32, 16 inputs after 16 inputs from the first on.
#pragma once

#include "grouped_linear.cuh"

constexpr i32 HEIGHT = ROWS / DOWN, BREADTH = COLUMNS / ACROSS;  // of a warp's part
constexpr i32 TALL = HEIGHT / 16, BROAD = BREADTH / 8;           // matrices of it
constexpr i32 FINISHED = COLUMNS + 8;  // of a row of results in shared memory: rows lie in different banks
static_assert(HEIGHT % 16 == 0 && BREADTH % 16 == 0 && DEPTH % 16 == 0, "matrices are 16 wide");
static_assert(ROWS * FINISHED <= STAGES * STAGE, "results lie where the stages were");

struct Sums {
    float at[TALL][BROAD][4];  // as `multiply_add` has them
};

struct Factors {
    u32 left[TALL][4], right[BROAD / 2][4];
};

DEVICE void load_factors(const T* stage, i32 step, Factors& factors) {
    const i32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, matrix = lane / 8;
    const T* left = stage;
    const T* right = stage + ROWS * DEPTH;
    const i32 row = warp / ACROSS * HEIGHT + matrix % 2 * 8 + lane % 8;
    const i32 column = warp % ACROSS * BREADTH + matrix / 2 * 8 + lane % 8;
#pragma unroll
    for (i32 i = 0; i < TALL; ++i) load_matrices(factors.left[i], left + place(row + i * 16, 2 * step + matrix / 2));
#pragma unroll
    for (i32 i = 0; i < BROAD / 2; ++i) {
        load_matrices(factors.right[i], right + place(column + i * 16, 2 * step + matrix % 2));
    }
}

// The factors of the next step are on their way while those of this one are multiplied.
DEVICE void multiply(const T* stage, Sums& sums) {
    Factors factors[2];
    load_factors(stage, 0, factors[0]);
#pragma unroll
    for (i32 step = 0; step < DEPTH / 16; ++step) {
        if (step + 1 < DEPTH / 16) load_factors(stage, step + 1, factors[(step + 1) % 2]);
        const Factors& now = factors[step % 2];
#pragma unroll
        for (i32 i = 0; i < TALL; ++i) {
#pragma unroll
            for (i32 j = 0; j < BROAD; ++j) {
                multiply_add(sums.at[i][j], now.left[i], now.right[j / 2][j % 2 * 2], now.right[j / 2][j % 2 * 2 + 1], T{});
            }
        }
    }
}

// Into shared memory first, so that 16 bytes go out at a time. bias: of the tile's first column, or null.
DEVICE void finish(const Sums& sums, const Tile& tile, const T* bias, T* out, i64 stride, T* shared) {
    const i32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    __syncthreads();  // nobody reads the stages any more
#pragma unroll
    for (i32 j = 0; j < BROAD; ++j) {
        const i32 column = warp % ACROSS * BREADTH + j * 8 + lane % 4 * 2;
        float added[2] = {0.0f, 0.0f};
#pragma unroll
        for (i32 i = 0; i < 2; ++i) {
            if (bias != nullptr && column + i < tile.columns) added[i] = to_float(bias[column + i]);
        }
#pragma unroll
        for (i32 i = 0; i < 2 * TALL; ++i) {
            const i32 row = warp / ACROSS * HEIGHT + i * 8 + lane / 4;
            const float* sum = sums.at[i / 2][j] + i % 2 * 2;
            *reinterpret_cast<u32*>(shared + row * FINISHED + column) = pack_pair<T>(sum[0] + added[0], sum[1] + added[1]);
        }
    }
    __syncthreads();
    const bool whole = stride % WIDTH == 0;  // then so are the columns of the last tile
    for (i32 item = threadIdx.x; item < tile.rows * (COLUMNS / WIDTH); item += THREADS) {
        const i32 row = item / (COLUMNS / WIDTH), column = item % (COLUMNS / WIDTH) * WIDTH;
        const T* from = shared + row * FINISHED + column;
        T* to = out + row * stride + column;
        if (whole && column < tile.columns) {
            store_quad(to, load_quad(from));
        } else {
            for (i32 i = 0; i < min(WIDTH, tile.columns - column); ++i) to[i] = from[i];
        }
    }
}
