// Paged attention of prompt chunks on the tensor cores, with an online softmax (FlashAttention-2, arXiv 2307.08691).
//
// A block takes ROWS rows: tokens of one segment times the GROUP query heads that share a kv head, so that keys and values
// are read once for all of them. Each of four warps has 16 rows, and all go through the context together, KEYS positions at
// a time, of which the next are copied into shared memory while these are multiplied.
#include "attention.cuh"

constexpr i32 GROUP = TG_GROUP;  // query heads of a block, of those that share a kv head: at most ROWS
constexpr i32 ROWS = TG_ROWS;
constexpr i32 KEYS = TG_KEYS;    // 16, or a multiple

constexpr i32 THREADS = ROWS * 2;       // a warp for 16 rows
constexpr i32 STRIDE = DIM + 8;         // of a row in shared memory: eight rows of a matrix lie in different banks
constexpr i32 ROW_QUADS = DIM / 8;
constexpr i32 TILE = KEYS * STRIDE;
constexpr bool KEEPS_QUERY = DIM <= 128;  // in registers; else it is read again for each tile
constexpr i32 STEPS = DIM / 16;           // of the product over a head's numbers
static_assert(DIM % 16 == 0 && KEYS % 16 == 0 && ROWS % 16 == 0, "matrices are 16 wide");
static_assert(GROUP <= ROWS, "a block has a token");

struct Tile {  // the work of a block
    const i32* table;
    i32 token, count, position;  // of the first token; how many
    i32 kv_head, first, heads;   // query heads first .. first + heads
    i32 from, to;                // positions that some token of it sees
};

// work: [tiles, 4], the row of the tables, the first token, how many (up to ROWS / GROUP), and the position of the first.
// Grid: tiles, kv heads times groups.
DEVICE Tile tile_of(const Attention& p) {
    const i32 share = p.heads / p.kv_heads, groups = (share + GROUP - 1) / GROUP;
    const i32* work = p.work + 4 * blockIdx.x;
    Tile tile;
    tile.table = p.tables + work[0] * p.table_stride;
    tile.token = work[1];
    tile.count = work[2];
    tile.position = work[3];
    tile.kv_head = blockIdx.y / groups;
    const i32 skipped = blockIdx.y % groups * GROUP;
    tile.first = tile.kv_head * share + skipped;
    tile.heads = min(GROUP, share - skipped);
    tile.from = p.window == 0 ? 0 : max(tile.position + 1 - p.window, 0);
    tile.to = tile.position + tile.count;
    return tile;
}

DEVICE bool is_real(const Tile& tile, i32 row) { return row / GROUP < tile.count && row % GROUP < tile.heads; }

DEVICE i64 query_offset(const Tile& tile, i32 row, i64 stride) {
    return (tile.token + row / GROUP) * stride + static_cast<i64>(tile.first + row % GROUP) * DIM;
}

DEVICE void stage_query(const Attention& p, const Tile& tile, T* shared) {
    for (i32 item = threadIdx.x; item < ROWS * ROW_QUADS; item += THREADS) {
        const i32 row = item / ROW_QUADS, column = item % ROW_QUADS * 8;
        const bool real = is_real(tile, row);
        const T* from = p.query + (real ? query_offset(tile, row, p.query_stride) + column : 0);
        store_quad(shared + row * STRIDE + column, real ? load_quad(from) : Quad{});
    }
}

// Keys and values of KEYS positions from `at` on, into two tiles; the last that is seen stands for those behind it,
// which nobody sees.
DEVICE void fetch(const Attention& p, const Tile& tile, i32 at, T* keys, T* values) {
#pragma unroll
    for (i32 item = threadIdx.x; item < KEYS * ROW_QUADS; item += THREADS) {
        const i32 row = item / ROW_QUADS, column = item % ROW_QUADS * 8;
        const i64 from = cached(p, tile.table, min(at + row, tile.to - 1), tile.kv_head) + column;
        copy_async(keys + row * STRIDE + column, p.keys + from);
        copy_async(values + row * STRIDE + column, p.values + from);
    }
    copy_commit();
}

// 16 rows by 16 columns at `from`, as the left factor.
DEVICE void load_left(u32 (&out)[4], const T* from) {
    const i32 lane = threadIdx.x % WARP, matrix = lane / 8;
    load_matrices(out, from + (matrix % 2 * 8 + lane % 8) * STRIDE + matrix / 2 * 8);
}

struct Rows {  // two of a lane: lane / 4 of its warp's, and eight behind it
    float highest[2], sum[2];
    float value[DIM / 8][4];  // columns 8i + 2 * (lane % 4) and the next, of the first row and of the second
};

DEVICE void multiply_keys(const T* query, const u32 (&kept)[STEPS][4], const T* keys, float (&scores)[KEYS / 8][4]) {
    const i32 lane = threadIdx.x % WARP, matrix = lane / 8;
#pragma unroll
    for (i32 step = 0; step < STEPS; ++step) {
        u32 left[4];
        if constexpr (KEEPS_QUERY) {
#pragma unroll
            for (i32 i = 0; i < 4; ++i) left[i] = kept[step][i];
        } else {
            load_left(left, query + step * 16);
        }
#pragma unroll
        for (i32 n = 0; n < KEYS / 8; n += 2) {
            u32 right[4];
            load_matrices(right, keys + (n * 8 + matrix / 2 * 8 + lane % 8) * STRIDE + step * 16 + matrix % 2 * 8);
            multiply_add(scores[n], left, right[0], right[1], T{});
            multiply_add(scores[n + 1], left, right[2], right[3], T{});
        }
    }
}

// Scores become exponents; positions that a row does not see are hidden. `inside`: all rows see all of them.
DEVICE void form_scores(const Attention& p, const Tile& tile, i32 at, bool inside, float (&scores)[KEYS / 8][4]) {
    const i32 lane = threadIdx.x % WARP, row = threadIdx.x / WARP * 16 + lane / 4;
    const float scale = query_scale(p);
#pragma unroll
    for (i32 n = 0; n < KEYS / 8; ++n) {
#pragma unroll
        for (i32 i = 0; i < 4; ++i) {
            const i32 mine = row + i / 2 * 8, key = at + n * 8 + lane % 4 * 2 + i % 2;
            const i32 back = tile.position + mine / GROUP - key;
            const i32 head = tile.first + min(mine % GROUP, tile.heads - 1);
            const float x = score(p, scores[n][i] * scale, head, back);
            const bool seen = inside || (back >= 0 && (p.window == 0 || back < p.window));
            scores[n][i] = seen ? x : HIDDEN;
        }
    }
}

DEVICE void soften(float (&scores)[KEYS / 8][4], Rows& rows) {
#pragma unroll
    for (i32 half = 0; half < 2; ++half) {
        float highest = rows.highest[half];
#pragma unroll
        for (i32 n = 0; n < KEYS / 8; ++n) {
            highest = fmaxf(highest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
        }
        highest = lanes_max<4>(highest);
        const float old = rescale(rows.highest[half], highest);
        rows.highest[half] = highest;
        rows.sum[half] *= old;
#pragma unroll
        for (i32 i = 0; i < DIM / 8; ++i) {
            rows.value[i][2 * half] *= old;
            rows.value[i][2 * half + 1] *= old;
        }
#pragma unroll
        for (i32 n = 0; n < KEYS / 8; ++n) {
#pragma unroll
            for (i32 i = 2 * half; i < 2 * half + 2; ++i) {
                scores[n][i] = rescale(scores[n][i], highest);
                rows.sum[half] += scores[n][i];
            }
        }
    }
}

DEVICE void multiply_values(const float (&weights)[KEYS / 8][4], const T* values, Rows& rows) {
    const i32 lane = threadIdx.x % WARP, matrix = lane / 8;
#pragma unroll
    for (i32 n = 0; n < KEYS / 8; n += 2) {
        const u32 left[4] = {
            pack_pair<T>(weights[n][0], weights[n][1]),
            pack_pair<T>(weights[n][2], weights[n][3]),
            pack_pair<T>(weights[n + 1][0], weights[n + 1][1]),
            pack_pair<T>(weights[n + 1][2], weights[n + 1][3]),
        };
#pragma unroll
        for (i32 i = 0; i < DIM / 8; i += 2) {
            u32 right[4];
            load_matrices_transposed(
                right, values + (n * 8 + matrix % 2 * 8 + lane % 8) * STRIDE + i * 8 + matrix / 2 * 8);
            multiply_add(rows.value[i], left, right[0], right[1], T{});
            multiply_add(rows.value[i + 1], left, right[2], right[3], T{});
        }
    }
}

DEVICE void store_rows(const Attention& p, const Tile& tile, Rows& rows) {
    const i32 lane = threadIdx.x % WARP;
#pragma unroll
    for (i32 half = 0; half < 2; ++half) {
        const i32 row = threadIdx.x / WARP * 16 + lane / 4 + half * 8;
        const float sum = lanes_sum<4>(rows.sum[half]);
        if (!is_real(tile, row)) continue;
        float scale;
        const float inverse = inverse_sum(p, tile.first + row % GROUP, rows.highest[half], sum, scale) * scale;
        T* out = p.out + query_offset(tile, row, static_cast<i64>(p.heads) * DIM) + lane % 4 * 2;
#pragma unroll
        for (i32 i = 0; i < DIM / 8; ++i) {
            *reinterpret_cast<u32*>(out + i * 8) =
                pack_pair<T>(rows.value[i][2 * half] * inverse, rows.value[i][2 * half + 1] * inverse);
        }
    }
}

// Dynamic shared memory: ROWS + 4 * KEYS rows of STRIDE numbers.
KERNEL(attention_prompt, Attention, THREADS) {
    SHARED_MEMORY(shared);
    T* const query = reinterpret_cast<T*>(shared);
    T* const keys = query + ROWS * STRIDE;  // two tiles
    T* const values = keys + 2 * TILE;      // two tiles
    const Tile tile = tile_of(p);

    fetch(p, tile, tile.from, keys, values);
    stage_query(p, tile, query);
    __syncthreads();
    const T* const own = query + threadIdx.x / WARP * 16 * STRIDE;
    u32 kept[STEPS][4];
    if constexpr (KEEPS_QUERY) {
#pragma unroll
        for (i32 step = 0; step < STEPS; ++step) load_left(kept[step], own + step * 16);
    }
    Rows rows = {{LOWEST, LOWEST}, {0.0f, 0.0f}, {}};
    i32 buffer = 0;
    for (i32 at = tile.from; at < tile.to; at += KEYS) {
        if (at + KEYS < tile.to) {
            fetch(p, tile, at + KEYS, keys + (buffer ^ 1) * TILE, values + (buffer ^ 1) * TILE);
            copy_wait<1>();
        } else {
            copy_wait<0>();
        }
        __syncthreads();  // what all have copied is there
        float scores[KEYS / 8][4] = {};
        multiply_keys(own, kept, keys + buffer * TILE, scores);
        const bool inside = at + KEYS <= tile.position + 1 && (p.window == 0 || at + p.window >= tile.to);
        form_scores(p, tile, at, inside, scores);
        soften(scores, rows);
        multiply_values(scores, values + buffer * TILE, rows);
        __syncthreads();  // nobody reads the tile any more
        buffer ^= 1;
    }
    store_rows(p, tile, rows);
}
