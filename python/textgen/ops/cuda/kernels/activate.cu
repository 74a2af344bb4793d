// Activations of an MLP, with a gate (arXiv 2002.05202: activation(gate) * up) or without. Compiled for one KIND; WIDTH
// numbers at a time.
#include "device.cuh"

constexpr i32 SILU = 0, GELU = 1, GELU_TANH = 2, RELU = 3, RELU2 = 4, CLAMPED_SILU = 5;

using T = TG_T;
constexpr i32 WIDTH = TG_WIDTH;
constexpr i32 KIND = TG_KIND;
constexpr bool GATED = TG_GATED;

constexpr i32 BLOCK = 256;

struct Activate {
    const T* x;  // [rows, size], with a gate [rows, 2 * size]: gate, then up
    T* out;      // [rows, size]
    i64 rows;
    i64 size;      // a multiple of WIDTH
    i64 stride;    // of a row of x
    float alpha;   // of CLAMPED_SILU: gate * sigmoid(alpha * gate) * (up + 1)
    float limit;   // gate at most this, up within +- it
};

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

DEVICE float activated(float x) {
    if constexpr (KIND == SILU) return x * sigmoid(x);
    if constexpr (KIND == GELU) return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    if constexpr (KIND == GELU_TANH) {
        return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    }
    if constexpr (KIND == RELU) return x > 0.0f || x != x ? x : 0.0f;
    if constexpr (KIND == RELU2) return x > 0.0f || x != x ? x * x : 0.0f;
    return x;
}

DEVICE float gated(float gate, float up, const Activate& p) {
    if constexpr (KIND == CLAMPED_SILU) {
        gate = gate > p.limit ? p.limit : gate;
        up = up > p.limit ? p.limit : up < -p.limit ? -p.limit : up;
        return gate * sigmoid(gate * p.alpha) * (up + 1.0f);
    }
    return activated(gate) * up;
}

KERNEL(activate, Activate, BLOCK) {
    const i64 parts = p.size / WIDTH;
    const i64 step = static_cast<i64>(gridDim.x) * BLOCK;
    for (i64 at = static_cast<i64>(blockIdx.x) * BLOCK + threadIdx.x; at < p.rows * parts; at += step) {
        const i64 row = at / parts, column = at % parts * WIDTH;
        float x[WIDTH];
        load_some<T>(p.x + row * p.stride + column, x);
        if constexpr (GATED) {
            float up[WIDTH];
            load_some<T>(p.x + row * p.stride + p.size + column, up);
#pragma unroll
            for (i32 i = 0; i < WIDTH; ++i) x[i] = gated(x[i], up[i], p);
        } else {
#pragma unroll
            for (i32 i = 0; i < WIDTH; ++i) x[i] = activated(x[i]);
        }
        store_some<T>(p.out + row * p.size + column, x);
    }
}
