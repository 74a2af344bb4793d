// What every kernel uses: types, conversions, vectors of 16 bytes, sums over a warp and a block. No header of the CUDA
// toolkit is included, so that NVRTC needs none and takes a fraction of a second.
//
// What a processor cannot do by itself is in intrinsics.cuh. Tests put a header of their own in its place and compile the
// same kernels as C++ (TEXTGEN_HOST).
#pragma once

using i32 = int;
using i64 = long long;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

struct bf16 {
    u16 bits;
};
struct f16 {
    u16 bits;
};
struct alignas(16) Quad {  // the widest load and store
    u32 at[4];
};

#ifdef TEXTGEN_HOST
#include "simt.h"
#else
#include "intrinsics.cuh"
#endif

#define DEVICE static __device__ __forceinline__

constexpr u32 WARP = 32;
constexpr u32 ALL_LANES = 0xffffffffu;
constexpr float LOG2_E = 1.4426950408889634f;

template <class T>
constexpr i32 PER_QUAD = 16 / sizeof(T);

DEVICE float to_float(float x) { return x; }
DEVICE float to_float(bf16 x) { return float_of_bits(static_cast<u32>(x.bits) << 16); }
DEVICE float to_float(f16 x) { return float_of_half(x.bits); }

template <class T>
DEVICE T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
    return x;
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) {
    return {bfloat_of_float(x)};
}
template <>
__device__ __forceinline__ f16 from_float<f16>(float x) {
    return {half_of_float(x)};
}

// Two neighbours as one word, the first in the low half.
template <class T>
DEVICE u32 pack_pair(float low, float high) {
    return pair_of_floats(low, high, T{});
}

DEVICE Quad load_quad(const void* from) { return *static_cast<const Quad*>(from); }
DEVICE void store_quad(void* to, const Quad& quad) { *static_cast<Quad*>(to) = quad; }

DEVICE void unpack(const Quad& quad, float (&out)[4], float) {
#pragma unroll
    for (i32 i = 0; i < 4; ++i) out[i] = float_of_bits(quad.at[i]);
}
DEVICE void unpack(const Quad& quad, float (&out)[8], bf16) {
#pragma unroll
    for (i32 i = 0; i < 4; ++i) {
        out[2 * i] = float_of_bits(quad.at[i] << 16);
        out[2 * i + 1] = float_of_bits(quad.at[i] & 0xffff0000u);
    }
}
DEVICE void unpack(const Quad& quad, float (&out)[8], f16) {
#pragma unroll
    for (i32 i = 0; i < 4; ++i) {
        out[2 * i] = float_of_half(static_cast<u16>(quad.at[i]));
        out[2 * i + 1] = float_of_half(static_cast<u16>(quad.at[i] >> 16));
    }
}

DEVICE Quad pack(const float (&in)[4], float) {
    Quad quad;
#pragma unroll
    for (i32 i = 0; i < 4; ++i) quad.at[i] = bits_of_float(in[i]);
    return quad;
}
template <class T>
DEVICE Quad pack(const float (&in)[8], T) {
    Quad quad;
#pragma unroll
    for (i32 i = 0; i < 4; ++i) quad.at[i] = pack_pair<T>(in[2 * i], in[2 * i + 1]);
    return quad;
}

// WIDTH numbers at a time: a quad of them, or one where rows do not begin at a multiple of 16 bytes.
template <class T, i32 WIDTH>
DEVICE void load_some(const T* from, float (&out)[WIDTH]) {
    if constexpr (WIDTH == 1) {
        out[0] = to_float(*from);
    } else {
        unpack(load_quad(from), out, T{});
    }
}
template <class T, i32 WIDTH>
DEVICE void store_some(T* to, const float (&in)[WIDTH]) {
    if constexpr (WIDTH == 1) {
        *to = from_float<T>(in[0]);
    } else {
        store_quad(to, pack(in, T{}));
    }
}

template <u32 LANES = WARP>
DEVICE float lanes_sum(float x) {
#pragma unroll
    for (u32 step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

template <u32 LANES = WARP>
DEVICE float lanes_max(float x) {
#pragma unroll
    for (u32 step = LANES / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

// The sum over a block of THREADS, in every thread; `scratch` has a float for each warp and is free again after the next
// barrier.
template <u32 THREADS>
DEVICE float block_sum(float x, float* scratch) {
    x = lanes_sum(x);
    if constexpr (THREADS > WARP) {
        if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = x;
        __syncthreads();
        x = lanes_sum(threadIdx.x % WARP < THREADS / WARP ? scratch[threadIdx.x % WARP] : 0.0f);
    }
    return x;
}
