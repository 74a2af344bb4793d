// Tiles in float32, without tensor cores, which would round the factors: one input after the other from the first on.
#pragma once

#include "grouped_linear.cuh"

constexpr i32 BESIDE = 16, BELOW = THREADS / BESIDE;              // threads in a row of them; rows
constexpr i32 TALL = ROWS / BELOW, BROAD = COLUMNS / BESIDE;      // numbers of a thread, that far apart
static_assert(ROWS % BELOW == 0 && COLUMNS % BESIDE == 0, "each thread has as much");

struct Sums {
    float at[TALL][BROAD];
};

DEVICE void multiply(const T* stage, Sums& sums) {
    const T* left = stage;
    const T* right = stage + ROWS * DEPTH;
    const i32 row = threadIdx.x / BESIDE, column = threadIdx.x % BESIDE;
    for (i32 unit = 0; unit < UNITS; ++unit) {
        float factors[BROAD][WIDTH];
#pragma unroll
        for (i32 j = 0; j < BROAD; ++j) unpack(load_quad(right + place(column + j * BESIDE, unit)), factors[j], T{});
#pragma unroll
        for (i32 i = 0; i < TALL; ++i) {
            float x[WIDTH];
            unpack(load_quad(left + place(row + i * BELOW, unit)), x, T{});
#pragma unroll
            for (i32 j = 0; j < BROAD; ++j) {
#pragma unroll
                for (i32 k = 0; k < WIDTH; ++k) sums.at[i][j] = fmaf(x[k], factors[j][k], sums.at[i][j]);
            }
        }
    }
}

// bias: of the tile's first column, or null.
DEVICE void finish(const Sums& sums, const Tile& tile, const T* bias, T* out, i64 stride, T*) {
#pragma unroll
    for (i32 j = 0; j < BROAD; ++j) {
        const i32 column = threadIdx.x % BESIDE + j * BESIDE;
        if (column >= tile.columns) continue;
        const float added = bias == nullptr ? 0.0f : bias[column];
#pragma unroll
        for (i32 i = 0; i < TALL; ++i) {
            const i32 row = threadIdx.x / BESIDE + i * BELOW;
            if (row < tile.rows) out[row * stride + column] = sums.at[i][j] + added;
        }
    }
}
