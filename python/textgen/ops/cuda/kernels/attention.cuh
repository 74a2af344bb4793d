// What the kernels of paged attention share: their parameters and work, what a form does to a score, and how a softmax ends.
#pragma once

#include "narrow.cuh"

using T = TG_T;                            // of queries and results
using S = TG_STORED;                       // of the cache: T, or 8 bits
constexpr i32 DIM = TG_DIM;                // of a query and a key, a multiple of 16 bytes in the cache
constexpr i32 VALUE_DIM = TG_VALUE_DIM;    // of a value and a result
constexpr i32 BLOCK_SIZE = TG_BLOCK_SIZE;  // positions of a cache block
constexpr i32 GROUP = TG_GROUP;            // query heads of a block, of those that share a kv head
constexpr bool SOFT_CAP = TG_SOFT_CAP;
constexpr bool SLOPES = TG_SLOPES;
constexpr bool BIASES = TG_BIASES;
constexpr bool PLAIN = !SOFT_CAP && !SLOPES && !BIASES;

struct Attention {
    const T* query;             // [tokens, heads, DIM], tokens query_stride apart
    const S* keys;              // [blocks, BLOCK_SIZE, kv_heads, DIM]
    const S* values;            // [blocks, BLOCK_SIZE, kv_heads, VALUE_DIM]
    const float* key_scales;    // [blocks, BLOCK_SIZE, kv_heads], of integers
    const float* value_scales;  // the same
    T* out;                     // [tokens, heads, VALUE_DIM]
    const i32* tables;          // [segments, table_stride] block tables
    const i32* work;            // [rows, 4]: a row of the tables, the first token, how many, and the position of the first
    const float* slopes;        // [heads]
    const float* biases;        // [heads, distances]
    const float* sinks;         // [heads], or null
    float* partial;             // [parts, VALUE_DIM], see Tile; not touched where contexts have one
    float* state;               // [parts, 2]: maximum (base 2) and sum
    i64 query_stride;
    i64 table_stride;
    i32 heads;
    i32 kv_heads;
    i32 tiles;                  // rows of work, the first ones, that are several tokens; the others are single tokens
    i32 singles;
    i32 tile_tokens;            // of a tile at most
    i32 splits;                 // into how many parts the context of a single token is cut
    i32 tile_splits;            // that of several
    i32 chunk;                  // positions of a part
    i32 tile_chunk;
    i32 window;                 // positions that a token sees, its own included; 0: all
    i32 distances;
    float scale;
    float soft_cap;
};

constexpr float LOWEST = -1e30f;  // finite, so that the difference of two is a number
constexpr float HIDDEN = -3e38f;   // the score of a position that is not seen: 0 beside LOWEST

// The work of a block: tokens that follow one another times query heads that share a kv head, and the positions that they
// are to see of those that they may. Grid: rows of work, kv heads times groups of GROUP, the larger number of splits.
//
// Parts of results: those of single tokens [singles, heads, splits], then others [tiles, tile_tokens, heads, tile_splits].
struct Tile {
    const i32* table;
    i32 token, count, position;  // of the first token; how many
    i32 kv_head, first, heads;   // query heads first .. first + heads
    i32 from, to;
    i32 splits;                  // parts of a result
    i64 part;                    // the one of the first token and head 0
    bool single;
};

DEVICE Tile tile_of(const Attention& p) {
    const i32 share = p.heads / p.kv_heads, groups = (share + GROUP - 1) / GROUP;
    const Quad work = load_quad(p.work + 4 * static_cast<i64>(blockIdx.x));
    Tile tile;
    tile.table = p.tables + static_cast<i64>(work.at[0]) * p.table_stride;
    tile.token = static_cast<i32>(work.at[1]);
    tile.count = static_cast<i32>(work.at[2]);
    tile.position = static_cast<i32>(work.at[3]);
    tile.kv_head = blockIdx.y / groups;
    const i32 skipped = blockIdx.y % groups * GROUP;
    tile.first = tile.kv_head * share + skipped;
    tile.heads = min(GROUP, share - skipped);
    const i32 row = static_cast<i32>(blockIdx.x), split = static_cast<i32>(blockIdx.z);
    tile.single = row >= p.tiles;
    tile.splits = tile.single ? p.splits : p.tile_splits;
    const i64 before = tile.single ? row - p.tiles : static_cast<i64>(row) * p.tile_tokens;  // tokens of its kind
    const i64 others = tile.single ? 0 : static_cast<i64>(p.singles) * p.heads * p.splits;
    tile.part = others + before * p.heads * tile.splits + split;
    const i32 end = tile.position + tile.count, chunk = tile.single ? p.chunk : p.tile_chunk;
    const i32 begin = p.window == 0 ? 0 : max(tile.position + 1 - p.window, 0);
    tile.from = split < tile.splits ? min(begin + split * chunk, end) : end;
    tile.to = min(tile.from + chunk, end);
    return tile;
}

DEVICE i64 part_of(const Attention& p, const Tile& tile, i32 token, i32 head) {
    return tile.part + (static_cast<i64>(token) * p.heads + head) * tile.splits;
}

// A context that has fewer parts than another: nothing is to be done but to say so.
DEVICE bool is_empty(const Attention& p, const Tile& tile) {
    if (tile.from < tile.to) return false;
    if (static_cast<i32>(blockIdx.z) >= tile.splits) return true;
    for (i32 item = threadIdx.x; item < tile.count * tile.heads; item += blockDim.x) {
        float* state = p.state + 2 * part_of(p, tile, item / tile.heads, tile.first + item % tile.heads);
        state[0] = LOWEST;
        state[1] = 0.0f;
    }
    return true;
}

// What a query is multiplied by, so that score() has less to do.
DEVICE float query_scale(const Attention& p) { return PLAIN ? p.scale * LOG2_E : p.scale; }

// From scaled query . key to the exponent of 2. `back`: positions from the key to the query.
DEVICE float score(const Attention& p, float x, i32 head, i32 back) {
    if constexpr (PLAIN) return x;
    if constexpr (SOFT_CAP) x = tanhf(x / p.soft_cap) * p.soft_cap;
    if constexpr (SLOPES) x -= p.slopes[head] * static_cast<float>(back);
    if constexpr (BIASES) {
        const i32 last = p.distances - 1;
        x += p.biases[static_cast<i64>(head) * p.distances + (back < 0 ? 0 : back < last ? back : last)];
    }
    return x * LOG2_E;
}

// The row of a position among the caches' rows of one head.
DEVICE i64 cache_row(const Attention& p, const Tile& tile, i32 position) {
    const i64 slot = static_cast<i64>(tile.table[position / BLOCK_SIZE]) * BLOCK_SIZE + position % BLOCK_SIZE;
    return slot * p.kv_heads + tile.kv_head;
}

// What turns a sum of exponents over `mine` into one over `common`, which is no less.
DEVICE float rescale(float mine, float common) { return exp2_fast(mine - common); }

// The end of a softmax: a sink takes its share and gives nothing.
DEVICE float inverse_sum(const Attention& p, i32 head, float highest, float sum, float& scale) {
    scale = 1.0f;
    if (p.sinks != nullptr) {
        const float sink = p.sinks[head] * LOG2_E, common = fmaxf(highest, sink);
        scale = rescale(highest, common);
        sum = sum * scale + rescale(sink, common);
    }
    return 1.0f / sum;
}

// What the warps of a block have seen of a single token becomes its result, or a part of it.
// values [warps, GROUP, VALUE_DIM], states [warps, GROUP, 2]: maximum and sum; both in shared memory.
template <i32 WARPS>
DEVICE void join_warps(const Attention& p, const Tile& tile, const float* values, const float* states) {
    for (i32 item = threadIdx.x; item < tile.heads * VALUE_DIM; item += WARPS * WARP) {
        const i32 g = item / VALUE_DIM, i = item % VALUE_DIM;
        float highest = LOWEST, sum = 0.0f, value = 0.0f;
#pragma unroll
        for (i32 w = 0; w < WARPS; ++w) highest = fmaxf(highest, states[(w * GROUP + g) * 2]);
#pragma unroll
        for (i32 w = 0; w < WARPS; ++w) {
            const float scale = rescale(states[(w * GROUP + g) * 2], highest);
            sum += states[(w * GROUP + g) * 2 + 1] * scale;
            value += values[(w * GROUP + g) * VALUE_DIM + i] * scale;
        }
        const i32 head = tile.first + g;
        if (tile.splits == 1) {
            float scale;
            const float inverse = inverse_sum(p, head, highest, sum, scale);
            p.out[(static_cast<i64>(tile.token) * p.heads + head) * VALUE_DIM + i] = from_float<T>(value * scale * inverse);
        } else {
            const i64 at = part_of(p, tile, 0, head);
            p.partial[at * VALUE_DIM + i] = value;
            if (i == 0) {
                p.state[at * 2] = highest;
                p.state[at * 2 + 1] = sum;
            }
        }
    }
}
