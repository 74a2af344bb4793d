// Products of many tokens with weights of 4 and 8 bits on the tensor cores.
//
// A block takes TOKENS tokens by WARPS * 64 outputs and goes along the inputs brick by brick, of which STAGES are copied into
// shared memory in turns. Each warp has outputs of its own: it copies and unpacks its weights once, lane by lane, and all
// warps read the same tile of x. A lane's eight neighbours of x are what it multiplies (see linear.cuh), so 16 bytes are
// loaded as they lie, where other layouts want ldmatrix: rows of 128 bytes, whose halves are exchanged in every second row,
// so that eight lanes meet all banks.
#include "linear.cuh"

constexpr i32 TOKENS = TG_TOKENS;
constexpr i32 WARPS = TG_WARPS;
constexpr i32 STAGES = TG_STAGES;

constexpr i32 THREADS = WARPS * WARP;
constexpr i32 TILES = TOKENS / 8;
constexpr i32 ROW_BYTES = BRICK * sizeof(T);
constexpr i32 SCALE_BYTES = BRICK_GROUPS * BRICK * sizeof(Scale);  // of a warp
constexpr i32 ZERO_BYTES = HAS_ZEROS ? BRICK_GROUPS * BRICK : 0;
constexpr i32 WEIGHTS = TOKENS * ROW_BYTES;  // where they begin in a stage
constexpr i32 SCALES = WEIGHTS + WARPS * UNITS * UNIT_BYTES;
constexpr i32 ZEROS = SCALES + WARPS * SCALE_BYTES;
constexpr i32 STAGE = ZEROS + WARPS * ZERO_BYTES;
constexpr i32 REGION = 16 * SUM_STRIDE;  // floats: a warp's sums of 16 tokens
static_assert(TOKENS % 16 == 0 && ROW_BYTES == 128, "tokens are stored 16 at a time");
static_assert(SCALE_BYTES <= WARP * 16, "a lane copies one piece of them");

struct Place {  // of a block and a warp
    i32 token, brick;  // the first token, and the 64 outputs: the last ones for warps that have none
    i64 bricks;        // along the inputs
};

DEVICE i32 swizzled(i32 row, i32 piece) { return row * ROW_BYTES + (piece ^ (row % 2 * 4)) * 16; }

DEVICE void fetch_tokens(const Linear& p, const Place& place, i32 at, unsigned char* stage) {
#pragma unroll
    for (i32 item = threadIdx.x; item < TOKENS * 8; item += THREADS) {
        const i32 row = item / 8, piece = item % 8, input = at * BRICK + piece * 8;
        unsigned char* to = stage + swizzled(row, piece);
        if (input < p.inputs) {
            copy_async(to, p.x + min(place.token + row, p.rows - 1) * p.stride + input);
        } else {
            store_quad(to, Quad{});
        }
    }
}

DEVICE void fetch_weights(const Linear& p, const Place& place, i32 at, unsigned char* stage) {
    const i32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const i64 brick = place.brick * place.bricks + at;
#pragma unroll
    for (i32 i = 0; i < UNITS * 4; ++i) {
        const i32 within = (i * WARP + lane) * 16;
        copy_async(stage + WEIGHTS + warp * UNITS * UNIT_BYTES + within, p.packed + brick * UNITS * UNIT_BYTES + within);
    }
    if constexpr (GROUP != 0) {
        const i64 groups = (place.bricks * BRICK + GROUP - 1) / GROUP;
        const i64 group = (place.brick * groups + at * BRICK / GROUP) * BRICK;
        if (lane < SCALE_BYTES / 16) {
            const void* from = reinterpret_cast<const Quad*>(p.scales + group) + lane;
            copy_async(stage + SCALES + warp * SCALE_BYTES + lane * 16, from);
        }
        if (lane < ZERO_BYTES / 16) {
            copy_async(stage + ZEROS + warp * ZERO_BYTES + lane * 16, p.zeros + group + lane * 16);
        }
    }
}

// Half of a brick's inputs: two steps. weights: a lane's; stage_half: of the brick, half: of the unit.
DEVICE void multiply_half(
    const unsigned char* stage, const Quad (&weights)[4], i32 half, i32 stage_half, float (&sums)[4][TILES][4]) {
    const i32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    Quad x[TILES];
#pragma unroll
    for (i32 tile = 0; tile < TILES; ++tile) {
        x[tile] = load_quad(stage + swizzled(8 * tile + lane / 4, stage_half * 4 + lane % 4));
    }
    Quad scales[SCALE_QUADS] = {};
    Eight zeros = {};
    if constexpr (GROUP != 0) {
        const i32 at = (GROUP == HALF ? stage_half : 0) * BRICK + lane / 4 * 8;
        const unsigned char* from = stage + SCALES + warp * SCALE_BYTES + at * sizeof(Scale);
#pragma unroll
        for (i32 i = 0; i < SCALE_QUADS; ++i) scales[i] = load_quad(from + i * 16);
        if constexpr (HAS_ZEROS) zeros = *reinterpret_cast<const Eight*>(stage + ZEROS + warp * ZERO_BYTES + at);
    }
#pragma unroll
    for (i32 i = 0; i < 4; ++i) {
        u32 less[2], first[4], second[4];
        take_zeros(less, zeros, i);
        unpack_step(first, weights[i], 2 * half, less);
        unpack_step(second, weights[i], 2 * half + 1, less);
        float scale[2];
        if constexpr (GROUP != 0) take_scales(scale, scales, i);
#pragma unroll
        for (i32 tile = 0; tile < TILES; ++tile) {
            const Quad& right = x[tile];
            if constexpr (GROUP == 0) {
                multiply_add(sums[i][tile], first, right.at[0], right.at[1], T{});
                multiply_add(sums[i][tile], second, right.at[2], right.at[3], T{});
            } else {
                float part[4];
                multiply(part, first, right.at[0], right.at[1], T{});
                multiply_add(part, second, right.at[2], right.at[3], T{});
                add_scaled(sums[i][tile], part, scale);
            }
        }
    }
}

DEVICE void multiply_brick(const unsigned char* stage, float (&sums)[4][TILES][4]) {
    const i32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
    for (i32 unit = 0; unit < UNITS; ++unit) {
        Quad weights[4];
#pragma unroll
        for (i32 i = 0; i < 4; ++i) {
            weights[i] = load_quad(stage + WEIGHTS + (warp * UNITS + unit) * UNIT_BYTES + (i * WARP + lane) * 16);
        }
#pragma unroll
        for (i32 half = 0; half < UNIT_HALVES; ++half) {
            multiply_half(stage, weights, half, unit * UNIT_HALVES + half, sums);
        }
    }
}

// 16 tokens at a time by way of shared memory, so that neighbours are stored together.
DEVICE void store_sums(const Linear& p, const Place& place, bool real, i32 split, float* region,
                       const float (&sums)[4][TILES][4]) {
    const i32 lane = threadIdx.x % WARP;
#pragma unroll
    for (i32 first = 0; first < TILES; first += 2) {
#pragma unroll
        for (i32 i = 0; i < 4; ++i) {
            put_sums(region, sums[i][first], i);
            put_sums(region + 8 * SUM_STRIDE, sums[i][first + 1], i);
        }
        __syncwarp();
#pragma unroll
        for (i32 item = lane; item < 16 * (BRICK / 4); item += WARP) {
            const i32 token = item / (BRICK / 4), column = item % (BRICK / 4) * 4;
            float y[4];
            unpack(load_quad(region + token * SUM_STRIDE + column), y, 0.0f);
            if (real) keep_or_finish(p, split, place.token + 8 * first + token, place.brick * BRICK + column, y);
        }
        __syncwarp();
    }
}

// Grid: tiles of tokens, which share weights, first; blocks of outputs; splits of the inputs. Dynamic shared memory: STAGES
// of STAGE bytes, which is more than WARPS regions.
KERNEL(linear_tiles, Linear, THREADS, 2) {
    SHARED_MEMORY(shared);
    const i32 warp = threadIdx.x / WARP, split = blockIdx.z;
    const i32 bricks = bricks_of(p.outputs), brick = blockIdx.y * WARPS + warp;
    const Place place = {static_cast<i32>(blockIdx.x) * TOKENS, min(brick, bricks - 1), bricks_of(p.inputs)};
    const i32 from = static_cast<i32>(place.bricks * split / p.splits);
    const i32 to = static_cast<i32>(place.bricks * (split + 1) / p.splits);
    const auto fetch = [&](i32 at) {
        if (at < to) {
            unsigned char* stage = shared + (at - from) % STAGES * STAGE;
            fetch_tokens(p, place, at, stage);
            fetch_weights(p, place, at, stage);
        }
        copy_commit();
    };
#pragma unroll
    for (i32 i = 0; i < STAGES - 1; ++i) fetch(from + i);
    float sums[4][TILES][4] = {};
    for (i32 at = from; at < to; ++at) {
        copy_wait<STAGES - 2>();
        __syncthreads();  // what all have copied is there, and nobody reads the stage before
        fetch(at + STAGES - 1);
        multiply_brick(shared + (at - from) % STAGES * STAGE, sums);
    }
    copy_wait<0>();
    __syncthreads();  // nobody reads a stage any more
    store_sums(p, place, brick < bricks, split, reinterpret_cast<float*>(shared) + warp * REGION, sums);
    if (p.splits > 1 && is_last(p, p.counters + blockIdx.y * gridDim.x + blockIdx.x)) {
        finish_splits<THREADS>(p, place.token, TOKENS, blockIdx.y * WARPS * BRICK, WARPS * BRICK);
    }
}
