// Each row of the result is a sum of some rows of y, each times its share: in float32 and in the order they are named, so
// that nothing depends on which block comes first.
#include "device.cuh"

using T = TG_T;
constexpr i32 THREADS = 128;
constexpr i32 WIDTH = TG_WIDTH;  // numbers of a thread: as many as 16 bytes have, or 1

struct WeightedSum {
    const T* y;           // [n, size]
    const i32* places;    // [rows, share]: rows of y
    const float* shares;  // [rows, share]
    T* out;               // [rows, size]
    i32 size, share;
};

// Grid: rows, parts of a row.
KERNEL(weighted_sum, WeightedSum, THREADS) {
    const i64 row = blockIdx.x;
    const i32 column = (blockIdx.y * THREADS + threadIdx.x) * WIDTH;
    if (column >= p.size) return;
    const i32* places = p.places + row * p.share;
    const float* shares = p.shares + row * p.share;
    float sum[WIDTH] = {};
#pragma unroll 4
    for (i32 i = 0; i < p.share; ++i) {
        float y[WIDTH];
        load_some<T, WIDTH>(p.y + static_cast<i64>(places[i]) * p.size + column, y);
#pragma unroll
        for (i32 j = 0; j < WIDTH; ++j) sum[j] += shares[i] * y[j];
    }
    store_some<T, WIDTH>(p.out + row * p.size + column, sum);
}
