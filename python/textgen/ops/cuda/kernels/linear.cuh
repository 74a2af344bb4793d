// What products with weights of 4 and 8 bits share: the layout of weights, how they become numbers, how sums become rows.
//
// y = x * w^T with w = scale * (value - zero), or scale * value - minimum; products are summed in float32, and scales are put on
// sums, not on numbers. A minimum is put on the sum of the group's inputs, which a fragment of ones makes.
//
// Weights are packed for the fragments of mma.m16n8k16 (the idea of Marlin, arXiv 2408.11743), with outputs as the rows of the
// left factor and tokens as the columns of the right one: so one layout serves a token as well as many. A brick is 64
// outputs by 64 inputs. In it, lane l of a warp has 16 bytes for each 16 outputs (and, of 8 bits, each half of the inputs),
// which are the lane's own numbers of the fragments. Inputs are dealt out to the fragments such that a lane's of 32 inputs
// are eight neighbours of x, 16 bytes: in step s of half h, lane l has inputs 32h + 8 (l % 4) + 4 s and the three behind it.
//
// packed: [outputs / 64, inputs / 64, halves of 8-bit weights, 4, 32 lanes, 16 bytes], what is missing filled up by zeros.
// scales, zeros (or minima): [outputs / 64, groups, 8, 4, 2], a lane's together: outputs 16j + 8k + i of a brick at [i, j, k].
//
// Rows that are sorted by expert are multiplied by the matrix of theirs: matrices lie one behind the other, whole bricks each.
#pragma once
#include "row_tiles.cuh"

enum Form { INT4, E2M1, INT8, E4M3, E5M2 };  // 8 bits are a sign and 7 bits: a magnitude, or exponent and fraction
enum Zeros { NO_ZEROS, POINTS, MINIMA };     // of 4-bit integers: points in bytes, minima as scales; else the point is 8

using T = TG_T;                         // of x, bias and result: bf16 or f16
using Scale = TG_SCALE;                 // f16, bf16 or float
constexpr Form FORM = TG_FORM;
constexpr i32 GROUP = TG_GROUP;         // inputs that share a scale, a multiple of 32; 0: all of them
constexpr Zeros KIND_OF_ZEROS = TG_ZEROS;
constexpr i32 SEARCHED = TG_SEARCHED;   // experts for each lane of a warp; 0: one matrix for all rows

constexpr i32 BRICK = 64;
constexpr i32 HALF = BRICK / 2;
constexpr bool FOUR_BITS = FORM == INT4 || FORM == E2M1;
constexpr i32 UNITS = FOUR_BITS ? 1 : 2;          // of a brick: what a warp has in one load of 16 bytes for each 16 outputs
constexpr i32 UNIT_HALVES = 2 / UNITS;
constexpr i32 STEP_WORDS = UNITS;                 // of a lane, for 16 outputs by 16 inputs
constexpr i32 UNIT_BYTES = 4 * WARP * 16;
constexpr i32 BRICK_GROUPS = GROUP == 0 ? 0 : GROUP == HALF ? 2 : 1;
constexpr i32 ZERO_SIZE = KIND_OF_ZEROS == POINTS ? 1 : KIND_OF_ZEROS == MINIMA ? sizeof(Scale) : 0;
constexpr i32 SPAN = GROUP == 0 ? BRICK : GROUP;  // a divisor, where there are groups
static_assert(GROUP % HALF == 0 && (GROUP <= BRICK || GROUP % BRICK == 0), "a brick has groups, or a group bricks");
static_assert(KIND_OF_ZEROS == NO_ZEROS || (FORM == INT4 && GROUP != 0), "zeros are 4-bit integers'");

struct Linear {
    const T* x;                   // [rows, inputs], rows `stride` apart; of experts any rows, which `sources` names
    const unsigned char* packed;
    const Scale* scales;
    const unsigned char* zeros;   // points, or minima of type Scale
    const T* bias;                // [outputs], of experts [experts, outputs]; or null
    T* out;                       // [rows, outputs]
    float* partial;               // [splits, rows, outputs in whole bricks], where the inputs are split
    u32* counters;                // 0 for each block of outputs and rows, before and after
    const i32* ends;              // [experts], the row each one's end before
    const i32* sources;           // [rows], the row of x that each is, or null: the same
    i64 stride;
    i32 rows, inputs, outputs, splits, experts;
};

struct alignas(8) Eight {  // bytes
    u32 at[2];
};

DEVICE i32 bricks_of(i32 size) { return (size + BRICK - 1) / BRICK; }

// The `index`-th tile of rows. False: there are not so many.
template <i32 HEIGHT>
DEVICE bool find_rows(const Linear& p, i32 index, RowTile& tile) {
    if constexpr (SEARCHED != 0) {
        return find_row_tile<SEARCHED, HEIGHT>(p.ends, p.experts, index, tile);
    } else {
        tile = {0, index * HEIGHT, min(HEIGHT, p.rows - index * HEIGHT)};
        return true;
    }
}

// Where a row lies in x.
DEVICE i32 source_of(const Linear& p, i32 row) {
    if constexpr (SEARCHED != 0) {
        if (p.sources != nullptr) return p.sources[row];
    }
    return row;
}

// The first of a matrix's outputs among those of all.
DEVICE i32 first_brick(const Linear& p, const RowTile& tile) { return SEARCHED == 0 ? 0 : tile.group * bricks_of(p.outputs); }

// ---- weights become numbers -----------------------------------------------------------------------------------------------

template <class Number>
constexpr bool IS_BF16 = false;
template <>
constexpr bool IS_BF16<bf16> = true;

DEVICE constexpr u32 twice(u32 bits) { return bits | bits << 16; }

constexpr u32 COUNTS = twice(IS_BF16<T> ? 0x4300 : 0x6400);  // 128 or 1024, with steps of 1 in the low bits
constexpr u32 ONE = twice(IS_BF16<T> ? 0x3f80 : 0x3c00);
constexpr u32 SIGNS = 0x80008000u;
constexpr u32 SIZES = 0x007f007fu;
// Exponents are moved to their place, and what their bias differs by is a factor: 2^126 and 2^14, 2^120 and 2^8, 2^112 and 1.
constexpr i32 FLOAT_SHIFT = FORM == E2M1 ? (IS_BF16<T> ? 6 : 9) : FORM == E4M3 ? (IS_BF16<T> ? 4 : 7) : (IS_BF16<T> ? 5 : 8);
constexpr u32 FLOAT_FACTOR = twice(FORM == E2M1   ? (IS_BF16<T> ? 0x7e80 : 0x7400)
                                   : FORM == E4M3 ? (IS_BF16<T> ? 0x7b80 : 0x5c00)
                                                  : (IS_BF16<T> ? 0x7780 : 0x3c00));

// Two numbers: signs in the highest bit of each half, the seven other bits lowest.
DEVICE u32 numbers_of(u32 bits) {
    if constexpr (FORM == INT8) {
        const u32 base = (bits & SIGNS) | COUNTS;
        return pair_fma(base, ONE | SIGNS, (bits & (SIGNS | SIZES)) | COUNTS, T{});
    } else {
        const u32 moved = (bits & SIZES) << FLOAT_SHIFT | (bits & SIGNS);
        return FLOAT_FACTOR == ONE ? moved : pair_fma(moved, FLOAT_FACTOR, 0, T{});
    }
}

// The left factor of a step: 16 outputs by 16 inputs, of a lane's words of them. less: what to take from 4-bit numbers of
// the first 8 outputs, and of the others.
DEVICE void unpack_step(u32 (&left)[4], const u32* words, const u32 (&less)[2]) {
    if constexpr (FORM == INT4) {
#pragma unroll
        for (i32 i = 0; i < 4; ++i) {
            left[i] = pair_fma((words[0] >> (4 * i) & 0x000f000fu) | COUNTS, ONE, less[i % 2], T{});
        }
    } else if constexpr (FORM == E2M1) {
#pragma unroll
        for (i32 i = 0; i < 4; ++i) {
            const u32 bits = words[0] >> (4 * i);
            left[i] = pair_fma((bits << 12 & SIGNS) | (bits & 0x00070007u) << FLOAT_SHIFT, FLOAT_FACTOR, 0, T{});
        }
    } else {
#pragma unroll
        for (i32 i = 0; i < 2; ++i) {
            const u32 word = words[i];
            left[2 * i] = numbers_of(word);
            left[2 * i + 1] = numbers_of(__byte_perm(word, 0, 0x2301));
        }
    }
}

// What the first 8 and the other of 16 outputs have less than their bits say. zeros: a lane's of a brick, outputs
// 16i to 16i + 15 of which are asked for.
DEVICE void take_zeros(u32 (&less)[2], const Eight& zeros, i32 i) {
#pragma unroll
    for (i32 half = 0; half < 2; ++half) {
        if constexpr (KIND_OF_ZEROS == POINTS) {
            const u32 selector = 2 * i % 4 + half;
            less[half] = __byte_perm(zeros.at[i / 2], (COUNTS | SIGNS) >> 8, selector | selector << 8 | 0x4040);
        } else {
            less[half] = COUNTS | SIGNS | twice(KIND_OF_ZEROS == MINIMA ? 0 : 8);
        }
    }
}

struct alignas(2 * sizeof(Scale)) ScalePair {  // of a lane's of 16 outputs, the first 8 and the others
    Scale at[2];
};

// inputs: what a fragment of ones makes of the group's, where there are minima.
DEVICE void add_scaled(
    float (&sum)[4], const float (&part)[4], const ScalePair& scales, const float (&inputs)[4], const ScalePair& minima) {
#pragma unroll
    for (i32 i = 0; i < 4; ++i) {
        sum[i] += to_float(scales.at[i / 2]) * part[i];
        if constexpr (KIND_OF_ZEROS == MINIMA) sum[i] -= to_float(minima.at[i / 2]) * inputs[i % 2];
    }
}

// ---- sums become rows -----------------------------------------------------------------------------------------------------

// A lane's sums of 8 tokens into shared memory, [token, output of the brick].
template <i32 STRIDE>
DEVICE void put_sums(float* sums, const float (&sum)[4], i32 i) {
    const i32 lane = threadIdx.x % WARP;
#pragma unroll
    for (i32 at = 0; at < 4; ++at) {
        sums[(lane % 4 * 2 + at % 2) * STRIDE + 16 * i + at / 2 * 8 + lane / 4] = sum[at];
    }
}

// Four neighbouring outputs of a tile's token, of which some may be none.
DEVICE void finish(const Linear& p, const RowTile& tile, i32 token, i32 output, float (&y)[4]) {
    if (token >= tile.rows || output >= p.outputs) return;
    const T* const bias = p.bias == nullptr ? nullptr : p.bias + tile.group * p.outputs;
#pragma unroll
    for (i32 i = 0; i < 4; ++i) {
        if constexpr (GROUP == 0) y[i] *= to_float(p.scales[first_brick(p, tile) * BRICK + output + i]);
        if (bias != nullptr && output + i < p.outputs) y[i] += to_float(bias[output + i]);
    }
    T* out = p.out + static_cast<i64>(tile.row + token) * p.outputs + output;
    if (p.outputs % 4 == 0) {
        *reinterpret_cast<Eight*>(out) = {{pack_pair<T>(y[0], y[1]), pack_pair<T>(y[2], y[3])}};
    } else {
        for (i32 i = 0; i < 4 && output + i < p.outputs; ++i) out[i] = from_float<T>(y[i]);
    }
}

// A block's sums, where blocks share out the inputs.
DEVICE float* partial_of(const Linear& p, i32 split, i32 row, i32 output) {
    return p.partial + (static_cast<i64>(split) * p.rows + row) * (bricks_of(p.outputs) * BRICK) + output;
}

DEVICE void keep_or_finish(const Linear& p, const RowTile& tile, i32 split, i32 token, i32 output, float (&y)[4]) {
    if (p.splits == 1) {
        finish(p, tile, token, output, y);
    } else if (token < tile.rows && output < p.outputs) {
        store_quad(partial_of(p, split, tile.row + token, output), pack(y, 0.0f));
    }
}

// Whether this block is the last of those that share a counter; what they kept is there for it then.
DEVICE bool is_last(const Linear& p, u32* counter) {
    __shared__ u32 before;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        before = atomicAdd(counter, 1u);
        if (before + 1 == static_cast<u32>(p.splits)) *counter = 0;
    }
    __syncthreads();
    __threadfence();
    return before + 1 == static_cast<u32>(p.splits);
}

// The sums of all splits, in their order whichever block comes last: the tile's tokens and so many outputs.
template <i32 THREADS>
DEVICE void finish_splits(const Linear& p, const RowTile& tile, i32 output, i32 outputs) {
    for (i32 item = threadIdx.x; item < tile.rows * (outputs / 4); item += THREADS) {
        const i32 token = item / (outputs / 4), column = output + item % (outputs / 4) * 4;
        if (column >= p.outputs) continue;
        float y[4] = {};
        for (i32 split = 0; split < p.splits; ++split) {
            float more[4];
            unpack(load_of_others(partial_of(p, split, tile.row + token, column)), more, 0.0f);
#pragma unroll
            for (i32 i = 0; i < 4; ++i) y[i] += more[i];
        }
        finish(p, tile, token, column, y);
    }
}
