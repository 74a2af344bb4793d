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

constexpr i32 THREADS = WARPS_N * WARPS_K * WARP;
constexpr i32 TOKENS = 8 * TILES;
constexpr i32 REGION = TOKENS * SUM_STRIDE;  // a warp's sums
constexpr i32 GROUPS = GROUP == HALF ? UNIT_HALVES : 1;  // of a unit
constexpr i32 GROUP_HALVES = UNIT_HALVES / GROUPS;

struct Unit {  // what a lane multiplies
    Quad weights[4], x[TILES][UNIT_HALVES], scales[GROUPS][SCALE_QUADS];
    Eight zeros[GROUPS];
};

DEVICE void load(const Linear& p, i32 brick, i32 index, Unit& unit) {
    const i32 lane = threadIdx.x % WARP, first = index * (UNIT_HALVES * HALF);
    const i64 bricks = bricks_of(p.inputs);
    const unsigned char* from = p.packed + (brick * bricks * UNITS + index) * UNIT_BYTES + lane * 16;
#pragma unroll
    for (i32 i = 0; i < 4; ++i) unit.weights[i] = load_streaming(from + i * WARP * 16);
#pragma unroll
    for (i32 tile = 0; tile < TILES; ++tile) {
#pragma unroll
        for (i32 half = 0; half < UNIT_HALVES; ++half) {
            const i32 token = 8 * tile + lane / 4, input = first + half * HALF + lane % 4 * 8;
            const bool real = token < p.rows && input < p.inputs;
            unit.x[tile][half] = real ? load_quad(p.x + token * p.stride + input) : Quad{};
        }
    }
    if constexpr (GROUP != 0) {
        const i64 groups = (bricks * BRICK + GROUP - 1) / GROUP;
#pragma unroll
        for (i32 i = 0; i < GROUPS; ++i) {
            const i64 at = (brick * groups + first / GROUP + i) * BRICK + lane / 4 * 8;
#pragma unroll
            for (i32 quad = 0; quad < SCALE_QUADS; ++quad) {
                unit.scales[i][quad] = load_quad(reinterpret_cast<const Quad*>(p.scales + at) + quad);
            }
            if constexpr (HAS_ZEROS) unit.zeros[i] = *reinterpret_cast<const Eight*>(p.zeros + at);
        }
    }
}

DEVICE void multiply_unit(const Unit& unit, float (&sums)[4][TILES][4]) {
#pragma unroll
    for (i32 i = 0; i < 4; ++i) {
#pragma unroll
        for (i32 group = 0; group < GROUPS; ++group) {
            u32 less[2];
            take_zeros(less, unit.zeros[group], i);
            float parts[TILES][4];
#pragma unroll
            for (i32 step = 0; step < 2 * GROUP_HALVES; ++step) {
                const i32 half = group * GROUP_HALVES + step / 2;
                u32 left[4];
                unpack_step(left, unit.weights[i], 2 * half + step % 2, less);
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
                float scale[2];
                take_scales(scale, unit.scales[group], i);
#pragma unroll
                for (i32 tile = 0; tile < TILES; ++tile) add_scaled(sums[i][tile], parts[tile], scale);
            }
        }
    }
}

// Grid: blocks of WARPS_N * 64 outputs, splits of the inputs. Dynamic shared memory: WARPS_N * WARPS_K * REGION floats.
KERNEL(linear_few, Linear, THREADS, TILES == 1 ? 2 : 1) {
    SHARED_MEMORY(shared);
    float* const regions = reinterpret_cast<float*>(shared);
    const i32 warp = threadIdx.x / WARP, warp_n = warp / WARPS_K, warp_k = warp % WARPS_K, split = blockIdx.y;
    const i32 bricks = bricks_of(p.outputs), brick = blockIdx.x * WARPS_N + warp_n;
    const i32 units = bricks_of(p.inputs) * UNITS;
    const i32 from = static_cast<i64>(units) * split / p.splits, to = static_cast<i64>(units) * (split + 1) / p.splits;
    float sums[4][TILES][4] = {};
    if (brick < bricks) {
        Unit ring[AHEAD];
#pragma unroll
        for (i32 i = 0; i < AHEAD; ++i) {
            if (from + warp_k + i * WARPS_K < to) load(p, brick, from + warp_k + i * WARPS_K, ring[i]);
        }
        for (i32 at = from + warp_k; at < to; at += AHEAD * WARPS_K) {
#pragma unroll
            for (i32 i = 0; i < AHEAD; ++i) {
                if (at + i * WARPS_K >= to) break;
                multiply_unit(ring[i], sums);
                const i32 next = at + (i + AHEAD) * WARPS_K;
                if (next < to) load(p, brick, next, ring[i]);
            }
        }
    }
#pragma unroll
    for (i32 i = 0; i < 4; ++i) {
#pragma unroll
        for (i32 tile = 0; tile < TILES; ++tile) {
            put_sums(regions + warp * REGION + tile * 8 * SUM_STRIDE, sums[i][tile], i);
        }
    }
    __syncthreads();
    for (i32 item = threadIdx.x; item < WARPS_N * TOKENS * (BRICK / 4); item += THREADS) {
        const i32 column = item % (BRICK / 4) * 4, token = item / (BRICK / 4) % TOKENS, of = item / (BRICK / 4) / TOKENS;
        float y[4] = {};
#pragma unroll
        for (i32 i = 0; i < WARPS_K; ++i) {
            float more[4];
            unpack(load_quad(regions + (of * WARPS_K + i) * REGION + token * SUM_STRIDE + column), more, 0.0f);
#pragma unroll
            for (i32 at = 0; at < 4; ++at) y[at] += more[at];
        }
        keep_or_finish(p, split, token, (blockIdx.x * WARPS_N + of) * BRICK + column, y);
    }
    if (p.splits > 1 && is_last(p, p.counters + blockIdx.x)) {
        finish_splits<THREADS>(p, 0, TOKENS, blockIdx.x * WARPS_N * BRICK, WARPS_N * BRICK);
    }
}
