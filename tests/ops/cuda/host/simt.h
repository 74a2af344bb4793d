// Stands in for intrinsics.cuh where a kernel of csrc/cuda is compiled as C++, to see what it computes: CUDA's own names that
// kernels use, and each intrinsic, by its definition in the PTX ISA. A copy is made when it is waited for and not before.
#pragma once

#include "fibers.h"

#define __device__
#define __forceinline__ inline
#define __shared__ static  // blocks run one after the other
#define INTRINSIC static inline

#define KERNEL(NAME, PARAMS, ...)                                                                                     \
    static void NAME##_thread(const PARAMS& p);                                                                       \
    static void NAME##_any(const void* p) { NAME##_thread(*static_cast<const PARAMS*>(p)); }                          \
    extern "C" const char* NAME(const void* p, u64 bytes, const u32* grid, u32 threads, u32 shared_bytes, u64 seed) { \
        if (bytes != sizeof(PARAMS)) return "the parameters have another size than the kernel's structure";           \
        return simt::launch(NAME##_any, simt::first(__VA_ARGS__), p, grid, threads, shared_bytes, seed);              \
    }                                                                                                                 \
    extern "C" const u64 NAME##_bytes = sizeof(PARAMS);                                                               \
    static void NAME##_thread(const PARAMS& p)

#define SHARED_MEMORY(NAME) unsigned char* const NAME = simt::now->shared

#define threadIdx (simt::now->current->thread)
#define blockIdx (simt::now->block)
#define gridDim (simt::now->grid)
#define blockDim (simt::Index{simt::now->threads, 1, 1})

INTRINSIC void __syncthreads() {
    simt::meet(simt::now->barrier, simt::now->threads, simt::LANES, "__syncthreads", nullptr, nullptr,
               [](simt::Meeting&) {});
}
INTRINSIC void __syncwarp() {
    simt::warp("__syncwarp", 0xffffffffu, nullptr, nullptr, [](simt::Meeting&) {});
}

template <class Value>
INTRINSIC Value shuffle(const char* operation, u32 mask, Value x, u32 lane_mask, u32 source) {
    struct Asked {
        Value x;
        u32 from;
    } asked{x, source ^ lane_mask};
    Value out;
    simt::warp(operation, mask, &asked, &out, [](simt::Meeting& at) {
        for (u32 lane = 0; lane < simt::LANES; ++lane) {
            const u32 from = static_cast<const Asked*>(at.in[lane])->from % simt::LANES;
            *static_cast<Value*>(at.out[lane]) = static_cast<const Asked*>(at.in[from])->x;
        }
    });
    return out;
}
template <class Value>
INTRINSIC Value __shfl_xor_sync(u32 mask, Value x, u32 lane_mask) {
    return shuffle("__shfl_xor_sync", mask, x, lane_mask, threadIdx.x % simt::LANES);
}
template <class Value>
INTRINSIC Value __shfl_sync(u32 mask, Value x, u32 source) {
    return shuffle("__shfl_sync", mask, x, 0, source);
}
INTRINSIC u32 __ballot_sync(u32 mask, bool x) {
    u32 out;
    simt::warp("__ballot_sync", mask, &x, &out, [](simt::Meeting& at) {
        u32 bits = 0;
        for (u32 lane = 0; lane < simt::LANES; ++lane) bits |= u32{*static_cast<const bool*>(at.in[lane])} << lane;
        for (u32 lane = 0; lane < simt::LANES; ++lane) *static_cast<u32*>(at.out[lane]) = bits;
    });
    return out;
}
INTRINSIC u32 __match_any_sync(u32 mask, u32 x) {
    u32 out;
    simt::warp("__match_any_sync", mask, &x, &out, [](simt::Meeting& at) {
        for (u32 lane = 0; lane < simt::LANES; ++lane) {
            u32 bits = 0;
            for (u32 other = 0; other < simt::LANES; ++other) {
                const bool same = *static_cast<const u32*>(at.in[lane]) == *static_cast<const u32*>(at.in[other]);
                bits |= u32{same} << other;
            }
            *static_cast<u32*>(at.out[lane]) = bits;
        }
    });
    return out;
}
// Fibers never change inside these.
template <class Value>
INTRINSIC Value atomicAdd(Value* at, Value x) {
    const Value was = *at;
    *at += x;
    return was;
}
template <class Value>
INTRINSIC Value min(Value a, Value b) {
    return b < a ? b : a;
}
template <class Value>
INTRINSIC Value max(Value a, Value b) {
    return a < b ? b : a;
}
INTRINSIC i32 __ffs(u32 x) { return __builtin_ffs(static_cast<i32>(x)); }
INTRINSIC i32 __popc(u32 x) { return __builtin_popcount(x); }
INTRINSIC i32 __clz(u32 x) { return x == 0 ? 32 : __builtin_clz(x); }
INTRINSIC float rsqrtf(float x) { return 1.0f / sqrtf(x); }

INTRINSIC float float_of_bits(u32 bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
INTRINSIC u32 bits_of_float(float x) {
    u32 bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
// Rounded to the nearest, ties to even.
INTRINSIC u16 bfloat_of_float(float x) {
    const u32 bits = bits_of_float(x);
    if (x != x) return 0x7fff;
    return static_cast<u16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
INTRINSIC float float_of_half(u16 bits) {
    const u32 exponent = (bits >> 10) & 31, fraction = bits & 1023;
    float x = exponent == 0    ? ldexpf(static_cast<float>(fraction), -24)
              : exponent == 31 ? (fraction != 0 ? NAN : INFINITY)
                               : ldexpf(static_cast<float>(1024 + fraction), static_cast<int>(exponent) - 25);
    return (bits & 0x8000) != 0 ? -x : x;
}
INTRINSIC u16 half_of_float(float x) {
    const u16 sign = static_cast<u16>((bits_of_float(x) >> 16) & 0x8000);
    const float size = fabsf(x);
    if (x != x) return 0x7fff;
    if (size == 0.0f) return sign;
    if (size >= 65520.0f) return sign | 0x7c00;
    int exponent;
    frexpf(size, &exponent);                           // size < 2^exponent
    const int unit = exponent < -13 ? -24 : exponent - 11;  // of the last place
    const u32 steps = static_cast<u32>(rintf(ldexpf(size, -unit)));
    if (unit == -24) return static_cast<u16>(sign + steps);
    return static_cast<u16>(sign + (static_cast<u32>(unit + 24) << 10) + steps);
}
INTRINSIC u32 pair_of_floats(float low, float high, bf16) {
    return bfloat_of_float(low) | u32{bfloat_of_float(high)} << 16;
}
INTRINSIC u32 pair_of_floats(float low, float high, f16) { return half_of_float(low) | u32{half_of_float(high)} << 16; }
static inline float to_float(bf16 x);
static inline float to_float(f16 x);
template <class Number>
INTRINSIC u32 multiply_pairs(u32 a, u32 b, Number) {
    float out[2];
    for (u32 i = 0; i < 2; ++i) {
        out[i] = to_float(Number{static_cast<u16>(a >> 16 * i)}) * to_float(Number{static_cast<u16>(b >> 16 * i)});
    }
    return pair_of_floats(out[0], out[1], Number{});
}
// Four of the eight bytes of y and x, named by the low bits of each digit of `digits`.
INTRINSIC u32 __byte_perm(u32 x, u32 y, u32 digits) {
    const u64 bytes = u64{y} << 32 | x;
    u32 out = 0;
    for (u32 i = 0; i < 4; ++i) out |= static_cast<u32>(bytes >> (digits >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return out;
}
INTRINSIC float exp2_fast(float x) {
    const float y = exp2f(x);
    return y < 1.1754944e-38f ? 0.0f : y;
}
INTRINSIC Quad load_streaming(const void* from) { return *static_cast<const Quad*>(from); }

template <u32 BYTES>
INTRINSIC void copy_later(void* shared, const void* global) {
    simt::Fiber& fiber = *simt::now->current;
    if (fiber.copies == simt::MAX_COPIES) simt::fail("more asynchronous copies than are known here");
    if (reinterpret_cast<u64>(shared) % BYTES != 0) simt::fail("an asynchronous copy goes where no 16 bytes begin");
    if (reinterpret_cast<u64>(global) % BYTES != 0) simt::fail("an asynchronous copy comes from no 16 bytes");
    fiber.pending[fiber.copies++] = {shared, global, fiber.groups, BYTES};
    memset(shared, 0xff, BYTES);
}
INTRINSIC void copy_async(void* shared, const void* global) { copy_later<16>(shared, global); }
INTRINSIC void copy_async_word(void* shared, const void* global) { copy_later<4>(shared, global); }
INTRINSIC void copy_commit() { ++simt::now->current->groups; }
template <i32 PENDING>
INTRINSIC void copy_wait() {
    simt::Fiber& fiber = *simt::now->current;
    u32 kept = 0;
    for (u32 i = 0; i < fiber.copies; ++i) {
        const simt::Copy& copy = fiber.pending[i];
        if (copy.group + PENDING >= fiber.groups) {
            fiber.pending[kept++] = copy;
        } else {
            memcpy(copy.to, copy.from, copy.bytes);
        }
    }
    fiber.copies = kept;
}

template <bool TRANSPOSED>
INTRINSIC void matrices(const char* operation, u32 (&out)[4], const void* row) {
    if (reinterpret_cast<u64>(row) % 16 != 0) simt::fail("a row of a matrix does not begin at 16 bytes");
    simt::warp(operation, 0xffffffffu, row, out, [](simt::Meeting& at) {
        for (u32 lane = 0; lane < simt::LANES; ++lane) {
            for (u32 matrix = 0; matrix < 4; ++matrix) {
                u16 pair[2];
                for (u32 i = 0; i < 2; ++i) {
                    const u32 major = lane / 4, minor = lane % 4 * 2 + i;
                    const u32 line = TRANSPOSED ? minor : major, column = TRANSPOSED ? major : minor;
                    pair[i] = static_cast<const u16*>(at.in[matrix * 8 + line])[column];
                }
                static_cast<u32*>(at.out[lane])[matrix] = pair[0] | u32{pair[1]} << 16;
            }
        }
    });
}
INTRINSIC void load_matrices(u32 (&out)[4], const void* row) { matrices<false>("load_matrices", out, row); }
INTRINSIC void load_matrices_transposed(u32 (&out)[4], const void* row) {
    matrices<true>("load_matrices_transposed", out, row);
}

// Sums in float32, as the order of a GPU's is not told.
template <class Number>
INTRINSIC void multiply_add(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1, Number) {
    struct Fragments {
        u32 a[4], b[2];
    } mine{{a[0], a[1], a[2], a[3]}, {b0, b1}};
    simt::warp("multiply_add", 0xffffffffu, &mine, sum, [](simt::Meeting& at) {
        float left[16][16], right[16][8];
        for (u32 lane = 0; lane < simt::LANES; ++lane) {
            const Fragments& of = *static_cast<const Fragments*>(at.in[lane]);
            for (u32 i = 0; i < 2; ++i) {
                const u32 group = lane / 4, inner = lane % 4 * 2 + i;
                for (u32 part = 0; part < 4; ++part) {
                    const u16 bits = static_cast<u16>(of.a[part] >> (16 * i));
                    left[group + part % 2 * 8][inner + part / 2 * 8] = to_float(Number{bits});
                }
                for (u32 part = 0; part < 2; ++part) {
                    right[inner + part * 8][group] = to_float(Number{static_cast<u16>(of.b[part] >> (16 * i))});
                }
            }
        }
        for (u32 lane = 0; lane < simt::LANES; ++lane) {
            for (u32 i = 0; i < 4; ++i) {
                const u32 line = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
                float x = static_cast<float*>(at.out[lane])[i];
                for (u32 k = 0; k < 16; ++k) x += left[line][k] * right[k][column];
                static_cast<float*>(at.out[lane])[i] = x;
            }
        }
    });
}

template <class Number>
INTRINSIC void multiply(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1, Number) {
    for (float& x : sum) x = 0.0f;
    multiply_add(sum, a, b0, b1, Number{});
}

static inline u16 rounded(double x, bf16) { return bfloat_of_float(static_cast<float>(x)); }
static inline u16 rounded(double x, f16) { return half_of_float(static_cast<float>(x)); }

template <class Number>
INTRINSIC u32 pair_fma(u32 a, u32 b, u32 c, Number) {
    u32 pair = 0;
    for (u32 shift = 0; shift < 32; shift += 16) {
        const auto part = [shift](u32 of) { return double{to_float(Number{static_cast<u16>(of >> shift)})}; };
        pair |= u32{rounded(part(a) * part(b) + part(c), Number{})} << shift;
    }
    return pair;
}

INTRINSIC void __threadfence() {}  // blocks run one after the other
INTRINSIC Quad load_of_others(const void* from) { return *static_cast<const Quad*>(from); }
