// Rotary embedding (arXiv 2104.09864, halves as in GPT-NeoX) of queries and keys, and the step's keys and values written
// into the paged cache: one launch, each number read and written once. A block takes a token.
//
// WIDTH numbers at a time, of both halves: DIM / 2 and head_dim - DIM are multiples of WIDTH. What is null is left out.
#include "device.cuh"

using T = TG_T;
constexpr i32 WIDTH = TG_WIDTH;
constexpr i32 DIM = TG_DIM;

struct Head {
    const T* x;        // heads of a token lie head_dim apart
    i64 stride;        // of a token
    T* out;            // where the rotated heads go, or null
    i64 out_stride;    // of a token
    T* cache;          // [slots, heads, head_dim], or null
    i32 heads;
    i32 head_dim;
    i32 rotated;       // whether the first DIM of each head are; else they are copied
    i32 reserved;
};

struct Rotary {
    Head query, key, value;
    const T* cos;     // [tokens, DIM]
    const T* sin;     // [tokens, DIM], negative in the first half
    const i64* slots; // [tokens] row of the caches
    i64 tokens;
};

constexpr i32 BLOCK = 128;

DEVICE void store_both(const Head& head, i64 token, i64 slot, i32 at, const float (&x)[WIDTH]) {
    if (head.out != nullptr) store_some<T>(head.out + token * head.out_stride + at, x);
    if (head.cache != nullptr) store_some<T>(head.cache + slot * head.heads * head.head_dim + at, x);
}

// `low` and `high` are DIM / 2 apart.
DEVICE void rotate_part(const Rotary& p, const Head& head, i64 token, i64 slot, i32 first, i32 column) {
    constexpr i32 HALF = DIM / 2;
    float low[WIDTH], high[WIDTH], cos_low[WIDTH], cos_high[WIDTH], sin_low[WIDTH], sin_high[WIDTH];
    const T* x = head.x + token * head.stride + first + column;
    load_some<T>(x, low);
    load_some<T>(x + HALF, high);
    load_some<T>(p.cos + token * DIM + column, cos_low);
    load_some<T>(p.cos + token * DIM + column + HALF, cos_high);
    load_some<T>(p.sin + token * DIM + column, sin_low);
    load_some<T>(p.sin + token * DIM + column + HALF, sin_high);
    float out_low[WIDTH], out_high[WIDTH];
#pragma unroll
    for (i32 i = 0; i < WIDTH; ++i) {
        out_low[i] = low[i] * cos_low[i] + high[i] * sin_low[i];
        out_high[i] = high[i] * cos_high[i] + low[i] * sin_high[i];
    }
    store_both(head, token, slot, first + column, out_low);
    store_both(head, token, slot, first + column + HALF, out_high);
}

DEVICE void write_heads(const Rotary& p, const Head& head, i64 token, i64 slot) {
    if (head.x == nullptr) return;
    const i32 pairs = head.rotated ? DIM / 2 / WIDTH : 0;
    const i32 plain = (head.head_dim - (head.rotated ? DIM : 0)) / WIDTH;
    const i32 parts = pairs + plain;
    for (i32 item = threadIdx.x; item < head.heads * parts; item += BLOCK) {
        const i32 first = item / parts * head.head_dim, part = item % parts;
        if (part < pairs) {
            rotate_part(p, head, token, slot, first, part * WIDTH);
        } else {
            const i32 at = first + head.head_dim - (parts - part) * WIDTH;
            float x[WIDTH];
            load_some<T>(head.x + token * head.stride + at, x);
            store_both(head, token, slot, at, x);
        }
    }
}

KERNEL(rotary, Rotary, BLOCK) {
    const i64 token = blockIdx.x;
    if (token >= p.tokens) return;
    const i64 slot = p.slots == nullptr ? 0 : p.slots[token];
    write_heads(p, p.query, token, slot);
    write_heads(p, p.key, token, slot);
    write_heads(p, p.value, token, slot);
}
