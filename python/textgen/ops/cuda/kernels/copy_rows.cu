// to[targets[i]] = from[sources[i]], rows of bytes; a null index counts 0, 1, 2, ... UNIT bytes at a time.
#include "device.cuh"

constexpr i32 UNIT = TG_UNIT;

struct CopyRows {
    const void* from;
    void* to;
    const i64* sources;  // [rows], or null
    const i64* targets;  // [rows], or null; each different
    i64 rows;
    i64 units;  // of a row
};

template <i32 SIZE>
struct Unit;
template <>
struct Unit<16> {
    using Type = Quad;
};
template <>
struct Unit<4> {
    using Type = u32;
};
template <>
struct Unit<1> {
    using Type = unsigned char;
};

constexpr i32 BLOCK = 256;

KERNEL(copy_rows, CopyRows, BLOCK) {
    using Type = typename Unit<UNIT>::Type;
    const i64 step = static_cast<i64>(gridDim.x) * BLOCK;
    for (i64 at = static_cast<i64>(blockIdx.x) * BLOCK + threadIdx.x; at < p.rows * p.units; at += step) {
        const i64 row = at / p.units, unit = at % p.units;
        const i64 source = p.sources == nullptr ? row : p.sources[row];
        const i64 target = p.targets == nullptr ? row : p.targets[row];
        static_cast<Type*>(p.to)[target * p.units + unit] = static_cast<const Type*>(p.from)[source * p.units + unit];
    }
}
