// out = x / rms(x) * weight (arXiv 1910.07467), and before that, where there is a residual, x += residual, stored too.
//
// Compiled for one SIZE. A row is read once and stays in registers: by a warp up to 1024 numbers (four rows a block), by a
// block of ROW_THREADS beyond. WIDTH numbers are loaded at a time.
#include "device.cuh"

using T = TG_T;
constexpr i32 SIZE = TG_SIZE;
constexpr i32 WIDTH = TG_WIDTH;
constexpr i32 ROW_THREADS = TG_ROW_THREADS;  // 32, or 128 and more

struct RmsNorm {
    const T* x;            // row r begins at (r / inner) * outer_stride + (r % inner) * inner_stride
    const T* residual;     // [rows, SIZE], or null
    T* sum;                // [rows, SIZE], x + residual; may be x or residual; null without residual
    const T* weight;       // [SIZE], or null
    const float* weight32; // [SIZE], in place of weight, or null
    T* out;                // [rows, SIZE]
    i64 rows;
    i64 inner;
    i64 outer_stride;
    i64 inner_stride;
    float eps;
};

constexpr i32 BLOCK = ROW_THREADS < 128 ? 128 : ROW_THREADS;
constexpr i32 PARTS = (SIZE + ROW_THREADS * WIDTH - 1) / (ROW_THREADS * WIDTH);

KERNEL(rms_norm, RmsNorm, BLOCK) {
    __shared__ float scratch[BLOCK / WARP];
    const i32 thread = threadIdx.x % ROW_THREADS;
    const i64 row = static_cast<i64>(blockIdx.x) * (BLOCK / ROW_THREADS) + threadIdx.x / ROW_THREADS;
    const bool real = row < p.rows;
    const T* x = p.x + (real ? row / p.inner * p.outer_stride + row % p.inner * p.inner_stride : 0);

    float mine[PARTS][WIDTH];
    float squares = 0.0f;
#pragma unroll
    for (i32 part = 0; part < PARTS; ++part) {
        const i32 at = (part * ROW_THREADS + thread) * WIDTH;
        if (!real || at >= SIZE) continue;
        load_some<T>(x + at, mine[part]);
        if (p.residual != nullptr) {
            float more[WIDTH];
            load_some<T>(p.residual + row * SIZE + at, more);
#pragma unroll
            for (i32 i = 0; i < WIDTH; ++i) mine[part][i] = to_float(from_float<T>(mine[part][i] + more[i]));
            store_some<T>(p.sum + row * SIZE + at, mine[part]);
        }
#pragma unroll
        for (i32 i = 0; i < WIDTH; ++i) squares += mine[part][i] * mine[part][i];
    }
    const float scale = rsqrtf(block_sum<ROW_THREADS>(squares, scratch) / SIZE + p.eps);
#pragma unroll
    for (i32 part = 0; part < PARTS; ++part) {
        const i32 at = (part * ROW_THREADS + thread) * WIDTH;
        if (!real || at >= SIZE) continue;
#pragma unroll
        for (i32 i = 0; i < WIDTH; ++i) {
            mine[part][i] *= scale;
            if (p.weight != nullptr) mine[part][i] *= to_float(p.weight[at + i]);
            if (p.weight32 != nullptr) mine[part][i] *= p.weight32[at + i];
        }
        store_some<T>(p.out + row * SIZE + at, mine[part]);
    }
}
