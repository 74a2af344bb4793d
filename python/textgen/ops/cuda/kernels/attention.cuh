// What the kernels of paged attention share: their parameters, and what a form does to a score.
#pragma once

#include "device.cuh"

using T = TG_T;
constexpr i32 DIM = TG_DIM;                // of a head, a multiple of 16 bytes
constexpr i32 BLOCK_SIZE = TG_BLOCK_SIZE;  // positions of a cache block
constexpr bool SOFT_CAP = TG_SOFT_CAP;
constexpr bool SLOPES = TG_SLOPES;
constexpr bool BIASES = TG_BIASES;
constexpr bool PLAIN = !SOFT_CAP && !SLOPES && !BIASES;

struct Attention {
    const T* query;       // [tokens, heads, DIM], tokens query_stride apart
    const T* keys;        // [blocks, BLOCK_SIZE, kv_heads, DIM]
    const T* values;      // the same
    T* out;               // [tokens, heads, DIM]
    const i32* tables;    // [segments, table_stride] block tables
    const i32* work;      // see each kernel
    const float* slopes;  // [heads]
    const float* biases;  // [heads, distances]
    const float* sinks;   // [heads], or null
    float* partial;       // [rows of work, heads, splits, DIM]; not read with one split
    float* state;         // [rows of work, heads, splits, 2]: maximum (base 2) and sum
    i64 query_stride;
    i64 table_stride;
    i32 heads;
    i32 kv_heads;
    i32 splits;           // into how many parts a context is cut
    i32 chunk;            // positions of a part
    i32 window;           // positions that a token sees, its own included; 0: all
    i32 distances;
    float scale;
    float soft_cap;
};

constexpr float LOWEST = -1e30f;  // finite, so that the difference of two is a number
constexpr float HIDDEN = -3e38f;   // the score of a position that is not seen: 0 beside LOWEST

// What a query is multiplied by, so that score() has less to do.
DEVICE float query_scale(const Attention& p) { return PLAIN ? p.scale * LOG2_E : p.scale; }

// From scaled query . key to the exponent of 2. `back`: positions from the key to the query.
DEVICE float score(const Attention& p, float x, i32 head, i32 back) {
    if constexpr (PLAIN) return x;
    if constexpr (SOFT_CAP) x = tanhf(x / p.soft_cap) * p.soft_cap;
    if constexpr (SLOPES) x -= p.slopes[head] * static_cast<float>(back);
    if constexpr (BIASES) {
        const i32 last = p.distances - 1;
        x += p.biases[static_cast<i64>(head) * p.distances + (back < 0 ? 0 : back < last ? back : last)];
    }
    return x * LOG2_E;
}

// Where the numbers of a position begin in the caches.
DEVICE i64 cached(const Attention& p, const i32* table, i32 position, i32 kv_head) {
    const i64 slot = static_cast<i64>(table[position / BLOCK_SIZE]) * BLOCK_SIZE + position % BLOCK_SIZE;
    return (slot * p.kv_heads + kv_head) * DIM;
}

// What turns a sum of exponents over `mine` into one over `common`, which is no less.
DEVICE float rescale(float mine, float common) { return exp2_fast(mine - common); }

// The end of a softmax: a sink takes its share and gives nothing.
DEVICE float inverse_sum(const Attention& p, i32 head, float highest, float sum, float& scale) {
    scale = 1.0f;
    if (p.sinks != nullptr) {
        const float sink = p.sinks[head] * LOG2_E, common = fmaxf(highest, sink);
        scale = rescale(highest, common);
        sum = sum * scale + rescale(sink, common);
    }
    return 1.0f / sum;
}
