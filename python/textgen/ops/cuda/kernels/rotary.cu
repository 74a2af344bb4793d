// Rotary embedding (arXiv 2104.09864, halves as in GPT-NeoX) of queries and keys, and the step's keys and values written
// into the paged cache, in 8 bits where it has them: one launch. A block takes a token.
//
// WIDTH numbers at a time, of both halves: DIM / 2 and head_dim - DIM are multiples of WIDTH. What is null is left out.
// Each number is read and written once; of a head that becomes integers a second time, once its largest one is known.
#include "narrow.cuh"

using T = TG_T;
using S = TG_STORED;  // of the cache: T, or 8 bits
constexpr i32 WIDTH = TG_WIDTH;
constexpr i32 DIM = TG_DIM;

struct Head {
    const T* x;        // heads of a token lie head_dim apart
    i64 stride;        // of a token
    T* out;            // where the rotated heads go, or null
    i64 out_stride;    // of a token
    S* cache;          // [slots, heads, head_dim], or null
    float* scales;     // [slots, heads], of integers: the largest number / 127
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

// Parts of a head: pairs of WIDTH numbers that turn together, DIM / 2 apart, then those that are copied.
struct Parts {
    i32 pairs, all;
};
DEVICE Parts parts_of(const Head& head) {
    const i32 pairs = head.rotated ? DIM / 2 / WIDTH : 0;
    return {pairs, pairs + (head.head_dim - (head.rotated ? DIM : 0)) / WIDTH};
}

// Calls take(column, numbers) with the numbers of a part as they are to be. from: the head.
template <class Take>
DEVICE void with_part(const Rotary& p, const Head& head, const Parts& parts, i64 token, const T* from, i32 part, Take take) {
    constexpr i32 HALF = DIM / 2;
    if (part >= parts.pairs) {
        const i32 column = head.head_dim - (parts.all - part) * WIDTH;
        float x[WIDTH];
        load_some<T>(from + column, x);
        take(column, x);
        return;
    }
    const i32 column = part * WIDTH;
    float low[WIDTH], high[WIDTH], cos_low[WIDTH], cos_high[WIDTH], sin_low[WIDTH], sin_high[WIDTH];
    load_some<T>(from + column, low);
    load_some<T>(from + column + HALF, high);
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
    take(column, out_low);
    take(column + HALF, out_high);
}

// What is cached in 8 bits is the number that others see.
DEVICE float seen(float x) { return to_float(from_float<T>(x)); }

template <class Stored>
DEVICE void store_cached(Stored* to, const float (&x)[WIDTH]) {
    if constexpr (NARROW<Stored>) {
        float rounded[WIDTH];
#pragma unroll
        for (i32 i = 0; i < WIDTH; ++i) rounded[i] = seen(x[i]);
        store_narrow(to, rounded);
    } else {
        store_some<T>(to, x);
    }
}

DEVICE void write_heads(const Rotary& p, const Head& head, i64 token, i64 slot) {
    const Parts parts = parts_of(head);
    for (i32 item = threadIdx.x; item < head.heads * parts.all; item += BLOCK) {
        const i32 first = item / parts.all * head.head_dim;
        const T* const from = head.x + token * head.stride + first;
        with_part(p, head, parts, token, from, item % parts.all, [&](i32 column, const float(&x)[WIDTH]) {
            const i32 at = first + column;
            if (head.out != nullptr) store_some<T>(head.out + token * head.out_stride + at, x);
            if (head.cache != nullptr) store_cached(head.cache + slot * head.heads * head.head_dim + at, x);
        });
    }
}

// A warp takes a head. No number is larger than what is no number, as bits.
template <class Stored>
DEVICE void write_integers(const Rotary& p, const Head& head, i64 token, i64 slot) {
    constexpr i32 WARPS = BLOCK / WARP;
    constexpr float LARGEST = 127.0f;
    const Parts parts = parts_of(head);
    const i32 lane = threadIdx.x % WARP;
    for (i32 index = threadIdx.x / WARP; index < head.heads; index += WARPS) {
        const i32 first = index * head.head_dim;
        const T* const from = head.x + token * head.stride + first;
        u32 bits = 0;
        for (i32 part = lane; part < parts.all; part += WARP) {
            with_part(p, head, parts, token, from, part, [&](i32 column, const float(&x)[WIDTH]) {
                if (head.out != nullptr) store_some<T>(head.out + token * head.out_stride + first + column, x);
#pragma unroll
                for (i32 i = 0; i < WIDTH; ++i) bits = max(bits, bits_of_float(seen(x[i])) & 0x7fffffffu);
            });
        }
#pragma unroll
        for (u32 step = WARP / 2; step > 0; step /= 2) bits = max(bits, __shfl_xor_sync(ALL_LANES, bits, step));
        const float largest = float_of_bits(bits), inverse = largest > 0.0f ? LARGEST / largest : 0.0f;
        const i64 row = slot * head.heads + index;
        if (lane == 0) head.scales[row] = largest / LARGEST;
        for (i32 part = lane; part < parts.all; part += WARP) {
            with_part(p, head, parts, token, from, part, [&](i32 column, const float(&x)[WIDTH]) {
                float integers[WIDTH];
#pragma unroll
                for (i32 i = 0; i < WIDTH; ++i) integers[i] = seen(x[i]) * inverse;
                store_narrow(reinterpret_cast<Stored*>(head.cache) + row * head.head_dim + column, integers);
            });
        }
    }
}

DEVICE void write(const Rotary& p, const Head& head, i64 token, i64 slot) {
    if (head.x == nullptr) return;
    if constexpr (SCALED<S>) {
        if (head.cache != nullptr) {
            write_integers<S>(p, head, token, slot);
            return;
        }
    }
    write_heads(p, head, token, slot);
}

KERNEL(rotary, Rotary, BLOCK) {
    const i64 token = blockIdx.x;
    if (token >= p.tokens) return;
    const i64 slot = p.slots == nullptr ? 0 : p.slots[token];
    write(p, p.query, token, slot);
    write(p, p.key, token, slot);
    write(p, p.value, token, slot);
}
