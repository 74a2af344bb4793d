// Products of up to 16 tokens with weights of 4 and 8 bits: bound by the memory that the weights are read from.
//
// A warp multiplies 64 outputs by every WARPS_K-th unit of the inputs. Weights go from memory straight into the registers
// that are multiplied, AHEAD units under way, and so does x, of which a block's warps read each number once for every 64
// outputs. Then the warps' sums are added in shared memory, and those of blocks that share out the inputs in global memory.
#include "linear.cuh"

constexpr i32 TILES = TG_TILES;      // of 8 tokens
constexpr i32 WARPS_N = TG_WARPS_N;  // side by side, for 64 outputs each
constexpr i32 WARPS_K = TG_WARPS_K;
constexpr i32 AHEAD = TG_AHEAD;
constexpr i32 RESIDENT = TG_RESIDENT;  // blocks that a multiprocessor is to have room for

constexpr i32 THREADS = WARPS_N * WARPS_K * WARP;
constexpr i32 TOKENS = 8 * TILES;
constexpr i32 STRIDE = BRICK + 4;  // of a token's sums in shared memory: lanes write to different banks
constexpr i32 REGION = TOKENS * STRIDE;  // a warp's sums
constexpr i32 GROUPS = GROUP == HALF ? UNIT_HALVES : 1;  // of a unit
constexpr i32 GROUP_HALVES = UNIT_HALVES / GROUPS;
constexpr i32 SCALE_QUADS = 8 * sizeof(Scale) / 16;  // of a lane and a group

struct Unit {  // what a lane multiplies
    Quad weights[4], x[TILES][UNIT_HALVES], scales[GROUPS][SCALE_QUADS];  // of 16 outputs, two scales
    Eight points[GROUPS];
    Quad minima[GROUPS][SCALE_QUADS];
};

template <class Number>
DEVICE Number scale_of(const Quad (&quads)[SCALE_QUADS], i32 index) {
    if constexpr (sizeof(Number) == 2) {
        return {static_cast<u16>(quads[0].at[index / 2] >> index % 2 * 16)};
    } else {
        return float_of_bits(quads[index / 4].at[index % 4]);
    }
}

struct Lane {  // where a lane's part of its warp's first unit lies
    const unsigned char* packed;
    const T* x[TILES];  // rows behind the last are the last, and nobody looks at what comes of them
    const Scale* scales;
    const unsigned char* zeros;
};

DEVICE Lane lane_of(const Linear& p, const RowTile& tile, i32 brick) {
    const i32 lane = threadIdx.x % WARP;
    const i64 bricks = bricks_of(p.inputs), groups = (bricks * BRICK + SPAN - 1) / SPAN;
    Lane at;
    at.packed = p.packed + brick * bricks * UNITS * UNIT_BYTES + lane * 16;
#pragma unroll
    for (i32 i = 0; i < TILES; ++i) {
        at.x[i] = p.x + source_of(p, tile.row + min(8 * i + lane / 4, tile.rows - 1)) * p.stride + lane % 4 * 8;
    }
    at.scales = p.scales + brick * groups * BRICK + lane / 4 * 8;
    at.zeros = p.zeros + (brick * groups * BRICK + lane / 4 * 8) * ZERO_SIZE;
    return at;
}

DEVICE void load(const Linear& p, const Lane& lane, i32 index, Unit& unit) {
    const i32 first = index * (UNIT_HALVES * HALF);
    const unsigned char* from = lane.packed + static_cast<i64>(index) * UNIT_BYTES;
#pragma unroll
    for (i32 i = 0; i < 4; ++i) unit.weights[i] = load_streaming(from + i * WARP * 16);
#pragma unroll
    for (i32 half = 0; half < UNIT_HALVES; ++half) {
        const i32 input = first + half * HALF;
        const bool real = input + static_cast<i32>(threadIdx.x % 4 * 8) < p.inputs;
#pragma unroll
        for (i32 tile = 0; tile < TILES; ++tile) unit.x[tile][half] = real ? load_quad(lane.x[tile] + input) : Quad{};
    }
    if constexpr (GROUP != 0) {
#pragma unroll
        for (i32 i = 0; i < GROUPS; ++i) {
            const i32 at = (first / SPAN + i) * BRICK;
#pragma unroll
            for (i32 quad = 0; quad < SCALE_QUADS; ++quad) {
                unit.scales[i][quad] = load_quad(reinterpret_cast<const Quad*>(lane.scales + at) + quad);
                if constexpr (KIND_OF_ZEROS == MINIMA) {
                    unit.minima[i][quad] = load_quad(reinterpret_cast<const Quad*>(lane.zeros + at * ZERO_SIZE) + quad);
                }
            }
            if constexpr (KIND_OF_ZEROS == POINTS) unit.points[i] = *reinterpret_cast<const Eight*>(lane.zeros + at);
        }
    }
}

// The sums of a group's inputs, in every row.
DEVICE void sum_inputs(const Unit& unit, i32 group, float (&inputs)[TILES][4]) {
    const u32 ones[4] = {ONE, ONE, ONE, ONE};
#pragma unroll
    for (i32 tile = 0; tile < TILES; ++tile) {
#pragma unroll
        for (i32 half = 0; half < GROUP_HALVES; ++half) {
            const Quad& x = unit.x[tile][group * GROUP_HALVES + half];
            if (half == 0) {
                multiply(inputs[tile], ones, x.at[0], x.at[1], T{});
            } else {
                multiply_add(inputs[tile], ones, x.at[0], x.at[1], T{});
            }
            multiply_add(inputs[tile], ones, x.at[2], x.at[3], T{});
        }
    }
}

DEVICE ScalePair pair_of(const Quad (&quads)[SCALE_QUADS], i32 i) {
    return {{scale_of<Scale>(quads, 2 * i), scale_of<Scale>(quads, 2 * i + 1)}};
}

DEVICE void multiply_unit(const Unit& unit, float (&sums)[4][TILES][4]) {
#pragma unroll
    for (i32 group = 0; group < GROUPS; ++group) {
        float inputs[TILES][4];
        if constexpr (KIND_OF_ZEROS == MINIMA) sum_inputs(unit, group, inputs);
#pragma unroll
        for (i32 i = 0; i < 4; ++i) {
            u32 less[2];
            take_zeros(less, unit.points[group], i);
            float parts[TILES][4];
#pragma unroll
            for (i32 step = 0; step < 2 * GROUP_HALVES; ++step) {
                const i32 half = group * GROUP_HALVES + step / 2;
                u32 left[4];
                unpack_step(left, unit.weights[i].at + (2 * half + step % 2) * STEP_WORDS, less);
#pragma unroll
                for (i32 tile = 0; tile < TILES; ++tile) {
                    const u32 right[2] = {unit.x[tile][half].at[step % 2 * 2], unit.x[tile][half].at[step % 2 * 2 + 1]};
                    if constexpr (GROUP == 0) {
                        multiply_add(sums[i][tile], left, right[0], right[1], T{});
                    } else if (step == 0) {
                        multiply(parts[tile], left, right[0], right[1], T{});
                    } else {
                        multiply_add(parts[tile], left, right[0], right[1], T{});
                    }
                }
            }
            if constexpr (GROUP != 0) {
                const ScalePair scales = pair_of(unit.scales[group], i), minima = pair_of(unit.minima[group], i);
#pragma unroll
                for (i32 tile = 0; tile < TILES; ++tile) {
                    add_scaled(sums[i][tile], parts[tile], scales, inputs[tile], minima);
                }
            }
        }
    }
}

// Grid: blocks of WARPS_N * 64 outputs, splits of the inputs, tiles of rows. Dynamic shared memory: WARPS_N * WARPS_K * REGION floats.
KERNEL(linear_few, Linear, THREADS, RESIDENT) {
    SHARED_MEMORY(shared);
    float* const regions = reinterpret_cast<float*>(shared);
    RowTile tile;
    if (!find_rows<TOKENS>(p, blockIdx.z, tile)) return;
    const i32 warp = threadIdx.x / WARP, warp_n = warp / WARPS_K, warp_k = warp % WARPS_K, split = blockIdx.y;
    const i32 bricks = bricks_of(p.outputs), brick = blockIdx.x * WARPS_N + warp_n;
    const i32 units = bricks_of(p.inputs) * UNITS;
    const i32 from = static_cast<i64>(units) * split / p.splits, to = static_cast<i64>(units) * (split + 1) / p.splits;
    float sums[4][TILES][4] = {};
    if (brick < bricks) {
        const Lane lane = lane_of(p, tile, first_brick(p, tile) + brick);
        Unit ring[AHEAD];
#pragma unroll
        for (i32 i = 0; i < AHEAD; ++i) {
            if (from + warp_k + i * WARPS_K < to) load(p, lane, from + warp_k + i * WARPS_K, ring[i]);
        }
        for (i32 at = from + warp_k; at < to; at += AHEAD * WARPS_K) {
#pragma unroll
            for (i32 i = 0; i < AHEAD; ++i) {
                if (at + i * WARPS_K >= to) break;
                multiply_unit(ring[i], sums);
                const i32 next = at + (i + AHEAD) * WARPS_K;
                if (next < to) load(p, lane, next, ring[i]);
            }
        }
    }
#pragma unroll
    for (i32 i = 0; i < 4; ++i) {
#pragma unroll
        for (i32 j = 0; j < TILES; ++j) put_sums<STRIDE>(regions + warp * REGION + j * 8 * STRIDE, sums[i][j], i);
    }
    __syncthreads();
    for (i32 item = threadIdx.x; item < WARPS_N * TOKENS * (BRICK / 4); item += THREADS) {
        const i32 column = item % (BRICK / 4) * 4, token = item / (BRICK / 4) % TOKENS, of = item / (BRICK / 4) / TOKENS;
        float y[4] = {};
#pragma unroll
        for (i32 i = 0; i < WARPS_K; ++i) {
            float more[4];
            unpack(load_quad(regions + (of * WARPS_K + i) * REGION + token * STRIDE + column), more, 0.0f);
#pragma unroll
            for (i32 at = 0; at < 4; ++at) y[at] += more[at];
        }
        keep_or_finish(p, tile, split, token, (blockIdx.x * WARPS_N + of) * BRICK + column, y);
    }
    if (p.splits > 1 && is_last(p, p.counters + blockIdx.z * gridDim.x + blockIdx.x)) {
        finish_splits<THREADS>(p, tile, blockIdx.x * WARPS_N * BRICK, WARPS_N * BRICK);
    }
}
