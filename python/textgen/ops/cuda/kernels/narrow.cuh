// Numbers of 8 bits, as a quantized cache has them: what they are in float and in 16 bits, and how numbers become them.
#pragma once

#include "device.cuh"

struct i8 {  // an integer from -127 to 127, which a scale belongs to
    signed char bits;
};
struct e4m3 {  // FP8 (arXiv 2209.05433): a sign, four bits of exponent, three of fraction; 448 is the largest
    unsigned char bits;
};

template <class S>
constexpr bool NARROW = sizeof(S) == 1;
template <class S>
constexpr bool SCALED = false;
template <>
constexpr bool SCALED<i8> = true;

struct alignas(8) Pair {
    u32 at[2];
};

DEVICE Pair pair_of(float a, float b) { return {{bits_of_float(a), bits_of_float(b)}}; }

// One of a word's four numbers in float.
DEVICE float narrow_to_float(u32 word, i32 place, i8) {
    // Behind the bits of 2^23 a byte is added to it.
    return float_of_bits(__byte_perm(word ^ 0x80808080u, 0x4b000000u, 0x7440 + place)) - 8388736.0f;
}
DEVICE float narrow_to_float(u32 word, i32 place, e4m3) {
    const u32 top = word << (24 - 8 * place);
    return float_of_bits((top & 0x80000000u) | ((top >> 4) & 0x07f00000u)) * 0x1p120f;  // exponents begin 120 earlier
}

DEVICE void unpack(const Quad& quad, float (&out)[16], i8) {
#pragma unroll
    for (i32 i = 0; i < 16; ++i) out[i] = narrow_to_float(quad.at[i / 4], i % 4, i8{});
}
DEVICE void unpack(const Quad& quad, float (&out)[16], e4m3) {
#pragma unroll
    for (i32 i = 0; i < 16; ++i) out[i] = narrow_to_float(quad.at[i / 4], i % 4, e4m3{});
}

// Eight numbers times their scale in 16 bits.
template <class T>
DEVICE Quad widen(const Pair& pair, float scale, i8) {
    Quad out;
#pragma unroll
    for (i32 i = 0; i < 4; ++i) {
        const u32 word = pair.at[i / 2];
        const i32 place = i % 2 * 2;
        out.at[i] = pack_pair<T>(narrow_to_float(word, place, i8{}) * scale,
                                 narrow_to_float(word, place + 1, i8{}) * scale);
    }
    return out;
}
// Two numbers, each the upper half of 16 bits: sign and fraction stay, and a product puts the exponent right.
DEVICE u32 widen_pair(u32 top, bf16) {
    return multiply_pairs((top & 0x80008000u) | ((top >> 4) & 0x07f007f0u), 0x7b807b80u, bf16{});  // 2^120
}
DEVICE u32 widen_pair(u32 top, f16) {
    return multiply_pairs((top & 0x80008000u) | ((top >> 1) & 0x3f803f80u), 0x5c005c00u, f16{});  // 2^8
}
template <class T>
DEVICE Quad widen(const Pair& pair, float, e4m3) {
    Quad out;
#pragma unroll
    for (i32 i = 0; i < 4; ++i) {
        out.at[i] = widen_pair(__byte_perm(pair.at[i / 2], 0, i % 2 == 0 ? 0x1404 : 0x3424), T{});
    }
    return out;
}

// The nearest, ties to even.
DEVICE u32 narrow_of_float(float x, i8) { return static_cast<u32>(static_cast<i32>(rintf(x))) & 0xff; }
// The same; what is larger than 448 becomes 448.
DEVICE u32 narrow_of_float(float x, e4m3) {
    if (x != x) return 0x7f;
    const u32 sign = (bits_of_float(x) >> 24) & 0x80, largest = bits_of_float(448.0f);
    const u32 bits = min(bits_of_float(x) & 0x7fffffffu, largest), least = (127u - 6) << 23;
    // Beside 2^20 times its own power of two a number keeps three bits behind the first.
    const float grid = float_of_bits((max(bits, least) & 0x7f800000u) + (20u << 23));
    const float y = float_of_bits(bits) + grid - grid;
    const u32 size = y >= 0x1p-6f ? (bits_of_float(y) >> 20) - (120 << 3) : static_cast<u32>(y * 512.0f);
    return sign | size;
}

// WIDTH numbers, one behind the other: a store of so many bytes.
template <class S, i32 WIDTH>
DEVICE void store_narrow(S* to, const float (&x)[WIDTH]) {
    static_assert(WIDTH == 1 || WIDTH == 4 || WIDTH == 8, "a byte, a word or two");
    if constexpr (WIDTH == 1) {
        to->bits = static_cast<unsigned char>(narrow_of_float(x[0], S{}));
    } else {
        u32 words[WIDTH / 4] = {};
#pragma unroll
        for (i32 i = 0; i < WIDTH; ++i) words[i / 4] |= narrow_of_float(x[i], S{}) << (i % 4 * 8);
        if constexpr (WIDTH == 8) {
            *reinterpret_cast<Pair*>(to) = {words[0], words[1]};
        } else {
            *reinterpret_cast<u32*>(to) = words[0];
        }
    }
}
