// Products of many tokens with weights of 4 and 8 bits on the tensor cores.
//
// A block takes TOKENS tokens by WARPS * 32 outputs and goes along the inputs brick by brick, of which STAGES are copied into
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
constexpr i32 OUTPUTS = BRICK / 2;  // of a warp: half of a brick
constexpr i32 PARTS = OUTPUTS / 16;
constexpr i32 BRICKS = WARPS / 2;
constexpr i32 SCALE_BYTES = BRICK_GROUPS * BRICK * sizeof(Scale);  // of a brick
constexpr i32 ZERO_BYTES = BRICK_GROUPS * BRICK * ZERO_SIZE;
constexpr i32 WEIGHTS = TOKENS * ROW_BYTES;  // where they begin in a stage
constexpr i32 SCALES = WEIGHTS + BRICKS * UNITS * UNIT_BYTES;
constexpr i32 ZEROS = SCALES + BRICKS * SCALE_BYTES;
constexpr i32 STAGE = ZEROS + BRICKS * ZERO_BYTES;
constexpr i32 HALF_OFFSET = UNITS == 2 ? UNIT_BYTES : 8;  // of a lane's words
constexpr i32 STRIDE = OUTPUTS + 4;  // of a token's sums: lanes write to different banks
constexpr i32 REGION = 16 * STRIDE;  // floats: a warp's sums of 16 tokens
static_assert(TOKENS % 16 == 0 && ROW_BYTES == 128, "tokens are stored 16 at a time");
static_assert(SCALE_BYTES <= WARP * 16 && ZERO_BYTES <= WARP * 16, "a lane copies one piece of them");

struct alignas(8 * UNITS) Words {  // of a lane, for 16 outputs by 32 inputs
    u32 at[2 * STEP_WORDS];
};

constexpr i32 ROWS_APART = THREADS / 8;  // eight threads copy a row

struct Thread {  // what a thread copies and multiplies
    i32 part;  // 16 of a brick's 64 outputs that the warp begins with
    i32 rows;  // from its first one on
    // Where it copies from, brick by brick, as 32 bits behind the beginning: rows of x in numbers; weights in 16 bytes, and
    // what of scales (the first of a brick's two warps) or zeros begins there in numbers.
    u32 x[TOKENS / ROWS_APART], packed, more;
    i32 x_to, x_from, weights, scales;  // in a stage
};

static_assert(ROWS_APART % 2 == 0 && TOKENS % ROWS_APART == 0, "a thread's rows are alike");

DEVICE i32 swizzled(i32 row, i32 piece) { return row * ROW_BYTES + (piece ^ (row % 2 * 4)) * 16; }

// Warps that have no outputs multiply the last ones once more.
DEVICE Thread thread_of(const Linear& p, const RowTile& tile, i32 first) {
    const i32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, piece = threadIdx.x % 8, row = threadIdx.x / 8;
    const i32 within = min(static_cast<i32>(blockIdx.y) * BRICKS + warp / 2, bricks_of(p.outputs) - 1);
    const u32 brick = first_brick(p, tile) + within;
    const u32 bricks = bricks_of(p.inputs), groups = (bricks * BRICK + SPAN - 1) / SPAN;
    Thread t;
    t.part = warp % 2 * PARTS;
    t.rows = tile.rows - row;
#pragma unroll
    for (i32 i = 0; i < TOKENS / ROWS_APART; ++i) {
        const u32 from = source_of(p, tile.row + min(row + i * ROWS_APART, tile.rows - 1));
        t.x[i] = from * static_cast<u32>(p.stride) + first * BRICK + piece * 8;
    }
    t.packed = (brick * bricks + first) * (UNITS * UNIT_BYTES / 16) + t.part * WARP + lane;
    t.more = brick * groups * BRICK;
    t.x_to = swizzled(row, piece);
    t.x_from = swizzled(lane / 4, lane % 4);
    t.weights = WEIGHTS + warp / 2 * UNITS * UNIT_BYTES + (t.part * WARP + lane) * 16;
    t.scales = SCALES + warp / 2 * SCALE_BYTES;
    return t;
}

// Brick `at`, to which the thread's pointers have come. Rows of x that are not there are left as they are: nobody looks at
// what comes of them.
DEVICE void fetch(const Linear& p, Thread& t, i32 at, unsigned char* stage) {
    const bool real = at * BRICK + static_cast<i32>(threadIdx.x % 8 * 8) < p.inputs;
#pragma unroll
    for (i32 i = 0; i < TOKENS / ROWS_APART; ++i) {
        unsigned char* const to = stage + t.x_to + i * ROWS_APART * ROW_BYTES;
        if (!real) {
            store_quad(to, Quad{});
        } else if (i * ROWS_APART < t.rows) {
            copy_async(to, p.x + t.x[i]);
        }
    }
#pragma unroll
    for (i32 unit = 0; unit < UNITS; ++unit) {
#pragma unroll
        for (i32 i = 0; i < PARTS; ++i) {
            const i32 within = unit * UNIT_BYTES + i * WARP * 16;
            copy_async(stage + t.weights + within, p.packed + static_cast<u64>(t.packed) * 16 + within);
        }
    }
    if constexpr (GROUP != 0) {
        const u32 group = t.more + at * BRICK / SPAN * BRICK;
        const i32 within = threadIdx.x % WARP * 16;
        if (t.part == 0) {
            const void* const from = reinterpret_cast<const unsigned char*>(p.scales + group) + within;
            if (within < SCALE_BYTES) copy_async(stage + t.scales + within, from);
        } else if (within < ZERO_BYTES) {
            copy_async(stage + ZEROS + threadIdx.x / WARP / 2 * ZERO_BYTES + within, p.zeros + group * ZERO_SIZE + within);
        }
    }
#pragma unroll
    for (i32 i = 0; i < TOKENS / ROWS_APART; ++i) t.x[i] += BRICK;
    t.packed += UNITS * UNIT_BYTES / 16;
}

struct Half {  // of a brick's inputs, for a warp's outputs: two steps
    u32 left[PARTS][2][4];
    ScalePair scale[PARTS], minimum[PARTS];
};

DEVICE void load_half(const Thread& t, const unsigned char* stage, i32 half, Half& out) {
    const i32 group = (GROUP == HALF ? half : 0) * BRICK + threadIdx.x % WARP / 4 * 8;
    const unsigned char* const zeros = stage + ZEROS + threadIdx.x / WARP / 2 * ZERO_BYTES + group * ZERO_SIZE;
    Eight points = {};
    if constexpr (KIND_OF_ZEROS == POINTS) {
        points = *reinterpret_cast<const Eight*>(zeros);
        if (t.part != 0) points.at[0] = points.at[1];
    }
#pragma unroll
    for (i32 i = 0; i < PARTS; ++i) {
        const Words words = *reinterpret_cast<const Words*>(stage + t.weights + half * HALF_OFFSET + i * WARP * 16);
        u32 less[2];
        take_zeros(less, points, i);
        unpack_step(out.left[i][0], words.at, less);
        unpack_step(out.left[i][1], words.at + STEP_WORDS, less);
        if constexpr (GROUP != 0) {
            out.scale[i] = reinterpret_cast<const ScalePair*>(stage + t.scales + group * sizeof(Scale))[t.part + i];
        }
        if constexpr (KIND_OF_ZEROS == MINIMA) out.minimum[i] = reinterpret_cast<const ScalePair*>(zeros)[t.part + i];
    }
}

// Tokens of the tiles from FIRST on that are there. x: a lane's piece of the first row; what is multiplied in both steps lies
// together. The branches are for the compiler too, which would start all products before it ends one, and has no registers
// for that.
constexpr i32 AT_ONCE = GROUP == 0 ? 2 : 1;  // tiles
template <i32 FIRST = 0>
DEVICE void multiply_half(const Half& half, const unsigned char* x, i32 tokens, float (&sums)[PARTS][TILES][4]) {
#pragma unroll
    for (i32 tile = FIRST; tile < FIRST + AT_ONCE; ++tile) {
        const Quad right = load_quad(x + tile * 8 * ROW_BYTES);
        float parts[PARTS][4], inputs[4];
        if constexpr (KIND_OF_ZEROS == MINIMA) {
            const u32 ones[4] = {ONE, ONE, ONE, ONE};
            multiply(inputs, ones, right.at[0], right.at[1], T{});
            multiply_add(inputs, ones, right.at[2], right.at[3], T{});
        }
#pragma unroll
        for (i32 i = 0; i < PARTS; ++i) {
            if constexpr (GROUP == 0) {
                multiply_add(sums[i][tile], half.left[i][0], right.at[0], right.at[1], T{});
            } else {
                multiply(parts[i], half.left[i][0], right.at[0], right.at[1], T{});
            }
        }
#pragma unroll
        for (i32 i = 0; i < PARTS; ++i) {
            if constexpr (GROUP == 0) {
                multiply_add(sums[i][tile], half.left[i][1], right.at[2], right.at[3], T{});
            } else {
                multiply_add(parts[i], half.left[i][1], right.at[2], right.at[3], T{});
                add_scaled(sums[i][tile], parts[i], half.scale[i], inputs, half.minimum[i]);
            }
        }
    }
    if constexpr (FIRST + AT_ONCE < TILES) {
        if (tokens > 8 * (FIRST + AT_ONCE)) multiply_half<FIRST + AT_ONCE>(half, x, tokens, sums);
    }
}

// 16 tokens at a time by way of shared memory, so that neighbours are stored together.
DEVICE void store_sums(
    const Linear& p, const RowTile& tile, i32 output, i32 split, float* region, const float (&sums)[PARTS][TILES][4]) {
    const i32 lane = threadIdx.x % WARP;
#pragma unroll
    for (i32 first = 0; first < TILES; first += 2) {
#pragma unroll
        for (i32 i = 0; i < PARTS * 2; ++i) {
            put_sums<STRIDE>(region + i % 2 * 8 * STRIDE, sums[i / 2][first + i % 2], i / 2);
        }
        __syncwarp();
#pragma unroll 1
        for (i32 item = lane; item < 16 * (OUTPUTS / 4); item += WARP) {
            const i32 row = item / (OUTPUTS / 4), column = item % (OUTPUTS / 4) * 4;
            float y[4];
            unpack(load_quad(region + row * STRIDE + column), y, 0.0f);
            keep_or_finish(p, tile, split, 8 * first + row, output + column, y);
        }
        __syncwarp();
    }
}

// Grid: tiles of rows, which share weights, first; blocks of outputs; splits of the inputs. Dynamic shared memory: STAGES
// of STAGE bytes, which is more than WARPS regions.
KERNEL(linear_tiles, Linear, THREADS, 2) {
    SHARED_MEMORY(shared);
    RowTile tile;
    if (!find_rows<TOKENS>(p, blockIdx.x, tile)) return;
    const i32 split = blockIdx.z;
    const i64 along = bricks_of(p.inputs);
    i32 at = static_cast<i32>(along * split / p.splits);
    const i32 to = static_cast<i32>(along * (split + 1) / p.splits);
    Thread thread = thread_of(p, tile, at);
    i32 full = 0, empty = 0;  // where stages begin
    const auto fetch_next = [&](i32 next) {
        if (next < to) fetch(p, thread, next, shared + empty);
        copy_commit();
        empty = empty + STAGE == STAGES * STAGE ? 0 : empty + STAGE;
    };
#pragma unroll 1
    for (i32 i = 0; i < STAGES - 1; ++i) fetch_next(at + i);
    float sums[PARTS][TILES][4] = {};
#pragma unroll 1
    for (; at < to; ++at) {
        copy_wait<STAGES - 2>();
        __syncthreads();  // what all have copied is there, and nobody reads the stage before
        fetch_next(at + STAGES - 1);
#pragma unroll 1  // or the second half is loaded before the first is done with, for which there are no registers
        for (i32 i = 0; i < 2; ++i) {
            const unsigned char* const stage = shared + full;
            Half half;
            load_half(thread, stage, i, half);
            multiply_half(half, stage + (thread.x_from ^ i * 64), tile.rows, sums);
        }
        full = full + STAGE == STAGES * STAGE ? 0 : full + STAGE;
    }
    copy_wait<0>();
    __syncthreads();  // nobody reads a stage any more
    const i32 first = blockIdx.y * BRICKS * BRICK, warp = threadIdx.x / WARP;
    store_sums(p, tile, first + warp * OUTPUTS, split, reinterpret_cast<float*>(shared) + warp * REGION, sums);
    if (p.splits > 1 && is_last(p, p.counters + blockIdx.y * gridDim.x + blockIdx.x)) {
        finish_splits<THREADS>(p, tile, first, BRICKS * BRICK);
    }
}
