// What only a GPU does, as small functions: conversions, loads past the L1 cache, asynchronous copies, matrix fragments.
// PTX ISA 7.0 and later, sm_80 and later.
#pragma once

#define INTRINSIC static __device__ __forceinline__

// A kernel takes one structure by value. Then: the most threads that a block has, and how many blocks a multiprocessor is to
// have room for, where ptxas would choose more.
#define KERNEL(NAME, PARAMS, ...) \
    extern "C" __global__ void __launch_bounds__(__VA_ARGS__) NAME(const __grid_constant__ PARAMS p)

// The block's dynamic shared memory.
#define SHARED_MEMORY(NAME) extern __shared__ __align__(16) unsigned char NAME[]

INTRINSIC float float_of_bits(u32 bits) { return __uint_as_float(bits); }
INTRINSIC u32 bits_of_float(float x) { return __float_as_uint(x); }

INTRINSIC float float_of_half(u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
INTRINSIC u16 half_of_float(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
INTRINSIC u16 bfloat_of_float(float x) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

// Two neighbours as one word, the first in the low half.
INTRINSIC u32 pair_of_floats(float low, float high, bf16) {
    u32 bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
INTRINSIC u32 pair_of_floats(float low, float high, f16) {
    u32 bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
// Both products, rounded once; what is below the normal numbers is kept.
INTRINSIC u32 multiply_pairs(u32 a, u32 b, bf16) {
    u32 bits;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(bits) : "r"(a), "r"(b), "r"(0x80008000u));
    return bits;
}
INTRINSIC u32 multiply_pairs(u32 a, u32 b, f16) {
    u32 bits;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(bits) : "r"(a), "r"(b));
    return bits;
}

// 2^x within two units in the last place; what is too small is 0.
INTRINSIC float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 16 bytes that nobody writes while the kernel runs and that no other block reads soon.
INTRINSIC Quad load_streaming(const void* from) {
    Quad quad;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(quad.at[0]), "=r"(quad.at[1]), "=r"(quad.at[2]), "=r"(quad.at[3])
        : "l"(from));
    return quad;
}

INTRINSIC u32 shared_address(const void* pointer) { return static_cast<u32>(__cvta_generic_to_shared(pointer)); }

// 16 bytes into shared memory: there when the thread has waited and a barrier has passed.
INTRINSIC void copy_async(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}
INTRINSIC void copy_async_word(void* shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}
INTRINSIC void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most PENDING of the thread's latest groups are under way.
template <i32 PENDING>
INTRINSIC void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Four 8x8 matrices of 16-bit numbers; lanes 8i to 8i+7 name the rows of matrix i. Lane l gets of each the two numbers
// at row l / 4, column 2 * (l % 4); transposed: of the transposed matrix.
INTRINSIC void load_matrices(u32 (&out)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}
INTRINSIC void load_matrices_transposed(u32 (&out)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// sum += a * b: a 16x16 by rows, b 16x8 by columns, sum 16x8 in float32 (PTX: mma.m16n8k16).
INTRINSIC void multiply_add(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1, bf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
INTRINSIC void multiply_add(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1, f16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// a * b: `multiply_add` to a sum of 0, which no register has to hold.
INTRINSIC void multiply(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1, bf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}
INTRINSIC void multiply(float (&sum)[4], const u32 (&a)[4], u32 b0, u32 b1, f16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=f"(sum[0]), "=f"(sum[1]), "=f"(sum[2]), "=f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

// a * b + c of two neighbours each, rounded once; numbers below the normal ones are kept.
INTRINSIC u32 pair_fma(u32 a, u32 b, u32 c, bf16) {
    u32 d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
INTRINSIC u32 pair_fma(u32 a, u32 b, u32 c, f16) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// 16 bytes that another block of this launch wrote before its __threadfence: not from the L1 cache.
INTRINSIC Quad load_of_others(const void* from) {
    Quad quad;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(quad.at[0]), "=r"(quad.at[1]), "=r"(quad.at[2]), "=r"(quad.at[3])
                 : "l"(from)
                 : "memory");
    return quad;
}
