// Attention on the tensor cores (FlashAttention-2, arXiv 2307.08691): what a warp does with its 16 rows of queries and some
// positions whose keys and values lie in shared memory, and how they come there.
#pragma once

#include "attention.cuh"

constexpr i32 MATRIX = 16;           // rows of a warp
constexpr i32 STRIDE = DIM + 8;      // of a row of 16-bit numbers in shared memory: eight rows lie in different banks
constexpr i32 STEPS = DIM / MATRIX;  // of the product over a head's numbers
constexpr i32 ROW_QUADS = DIM * static_cast<i32>(sizeof(S)) / 16;  // of a position in the cache
static_assert(DIM % MATRIX == 0, "matrices are 16 wide");

// The rows of a tile are its tokens, of each the heads of the group.
DEVICE bool is_real(const Tile& tile, i32 row) { return row / GROUP < tile.count && row % GROUP < tile.heads; }

DEVICE i64 row_offset(const Tile& tile, i32 row, i64 token_stride, i32 size) {
    return (tile.token + row / GROUP) * token_stride + static_cast<i64>(tile.first + row % GROUP) * size;
}

template <i32 ROWS, i32 THREADS>
DEVICE void stage_query(const Attention& p, const Tile& tile, T* shared) {
    constexpr i32 QUADS = DIM / 8;
    for (i32 item = threadIdx.x; item < ROWS * QUADS; item += THREADS) {
        const i32 row = item / QUADS, column = item % QUADS * 8;
        const bool real = is_real(tile, row);
        const T* from = p.query + (real ? row_offset(tile, row, p.query_stride, DIM) + column : 0);
        store_quad(shared + row * STRIDE + column, real ? load_quad(from) : Quad{});
    }
}

// KEYS positions as they are cached: numbers of T where tensor cores read them, those of 8 bits one behind the other, with
// their scales.
template <i32 KEYS>
constexpr i32 FETCHED_BYTES = NARROW<S> ? KEYS * (DIM + 4) : KEYS * STRIDE * 2;

// Begins to copy them, by THREADS threads of which this one is `thread`. rows(i): the i-th one's row of the cache; all
// threads ask for as many.
template <i32 KEYS, i32 THREADS, class Rows>
DEVICE void fetch(const S* cache, const float* scales, unsigned char* to, i32 thread, Rows rows) {
    constexpr i32 ITEMS = KEYS * ROW_QUADS;
#pragma unroll
    for (i32 first = 0; first < ITEMS; first += THREADS) {
        const i32 item = first + thread, key = min(item / ROW_QUADS, KEYS - 1), quad = item % ROW_QUADS;
        const i64 row = rows(key);
        if (ITEMS % THREADS == 0 || item < ITEMS) {
            const i32 at = NARROW<S> ? item * 16 : key * STRIDE * 2 + quad * 16;
            copy_async(to + at, cache + row * DIM + quad * (16 / static_cast<i32>(sizeof(S))));
        }
    }
    if constexpr (SCALED<S>) {
        const i64 row = rows(min(thread, KEYS - 1));
        if (thread < KEYS) copy_async_word(to + KEYS * DIM + thread * 4, scales + row);
    }
}

// Numbers of 8 bits that have come become those of a tile.
template <i32 KEYS, i32 THREADS, class Stored>
DEVICE void widen_all(const unsigned char* fetched, T* tile, i32 thread) {
    constexpr i32 EIGHTS = DIM / 8;
    const float* scales = reinterpret_cast<const float*>(fetched + KEYS * DIM);
#pragma unroll 2
    for (i32 item = thread; item < KEYS * EIGHTS; item += THREADS) {
        const i32 key = item / EIGHTS, column = item % EIGHTS * 8;
        const float scale = SCALED<Stored> ? scales[key] : 1.0f;
        store_quad(tile + key * STRIDE + column, widen<T>(reinterpret_cast<const Pair*>(fetched)[item], scale, Stored{}));
    }
}

// 16 rows by 16 columns at `from`, as the left factor.
DEVICE void load_left(u32 (&out)[4], const T* from, i32 stride = STRIDE) {
    const i32 lane = threadIdx.x % WARP, matrix = lane / 8;
    load_matrices(out, from + (matrix % 2 * 8 + lane % 8) * stride + matrix / 2 * 8);
}

// The queries of a warp: in registers, or, where those would be too many, read again for each tile.
struct Queries {
    static constexpr bool KEPT = DIM <= 64;
    const T* rows;
    u32 kept[KEPT ? STEPS : 1][4];

    __device__ __forceinline__ explicit Queries(const T* from) : rows(from) {
        if constexpr (KEPT) {
#pragma unroll
            for (i32 step = 0; step < STEPS; ++step) load_left(kept[step], rows + step * MATRIX);
        }
    }
    __device__ __forceinline__ void left(u32 (&out)[4], i32 step) const {
        if constexpr (KEPT) {
#pragma unroll
            for (i32 i = 0; i < 4; ++i) out[i] = kept[step][i];
        } else {
            load_left(out, rows + step * MATRIX);
        }
    }
};

// The softmax so far of two rows of a lane: lane / 4 of its warp's, and eight behind it.
struct Running {
    float highest[2] = {LOWEST, LOWEST}, sum[2] = {0.0f, 0.0f};
};

// scores += queries . keys, of 8 * N positions.
template <i32 N>
DEVICE void multiply_keys(const Queries& queries, const T* keys, float (&scores)[N][4]) {
    const i32 lane = threadIdx.x % WARP, matrix = lane / 8;
#pragma unroll
    for (i32 step = 0; step < STEPS; ++step) {
        u32 left[4];
        queries.left(left, step);
#pragma unroll
        for (i32 n = 0; n < N; n += 2) {
            u32 right[4];
            load_matrices(right, keys + (n * 8 + matrix / 2 * 8 + lane % 8) * STRIDE + step * 16 + matrix % 2 * 8);
            multiply_add(scores[n], left, right[0], right[1], T{});
            multiply_add(scores[n + 1], left, right[2], right[3], T{});
        }
    }
}

// Scores become exponents of 2; positions that a row does not see are hidden. first: of the tile's rows, the warp's first;
// at: the first position.
template <i32 N>
DEVICE void form_scores(const Attention& p, const Tile& tile, i32 first, i32 at, float (&scores)[N][4]) {
    const i32 lane = threadIdx.x % WARP, row = first + lane / 4;
    const float scale = query_scale(p);
    const bool inside = at >= tile.from && at + N * 8 <= min(tile.position + 1, tile.to) &&
                        (p.window == 0 || at + p.window >= tile.position + tile.count);  // all rows see all of them
#pragma unroll
    for (i32 n = 0; n < N; ++n) {
#pragma unroll
        for (i32 i = 0; i < 4; ++i) {
            const i32 mine = row + i / 2 * 8, key = at + n * 8 + lane % 4 * 2 + i % 2;
            const i32 back = tile.position + mine / GROUP - key;
            const i32 head = tile.first + min(mine % GROUP, tile.heads - 1);
            const float x = score(p, scores[n][i] * scale, head, back);
            const bool seen = inside || (back >= 0 && key >= tile.from && key < tile.to && (p.window == 0 || back < p.window));
            scores[n][i] = seen ? x : HIDDEN;
        }
    }
}

// The highest of each row's scores and of `running`.
template <i32 N>
DEVICE void row_highest(const float (&scores)[N][4], const Running& running, float (&out)[2]) {
#pragma unroll
    for (i32 half = 0; half < 2; ++half) {
        out[half] = running.highest[half];
#pragma unroll
        for (i32 n = 0; n < N; ++n) out[half] = fmaxf(out[half], fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
        out[half] = lanes_max<4>(out[half]);
    }
}

// Exponents become weights beside a new highest one, and what was summed before them is scaled to it.
template <i32 N, i32 COLUMNS>
DEVICE void soften(const float (&highest)[2], float (&scores)[N][4], Running& running, float (&values)[COLUMNS][4]) {
    float old[2];
#pragma unroll
    for (i32 half = 0; half < 2; ++half) {
        old[half] = rescale(running.highest[half], highest[half]);
        running.highest[half] = highest[half];
        running.sum[half] *= old[half];
#pragma unroll
        for (i32 n = 0; n < N; ++n) {
#pragma unroll
            for (i32 i = 2 * half; i < 2 * half + 2; ++i) {
                scores[n][i] = rescale(scores[n][i], highest[half]);
                running.sum[half] += scores[n][i];
            }
        }
    }
    // Most tiles have no row's highest score.
    if (__ballot_sync(ALL_LANES, old[0] != 1.0f || old[1] != 1.0f) == 0) return;
#pragma unroll
    for (i32 i = 0; i < COLUMNS; ++i) {
#pragma unroll
        for (i32 j = 0; j < 4; ++j) values[i][j] *= old[j / 2];
    }
}

// A row's result, or a part of it: columns 8i + 2 * (lane % 4) and the next, COLUMNS of them from `column` on. half: which
// of a lane's two rows; sum: of all its weights.
template <i32 COLUMNS>
DEVICE void store_row(const Attention& p, const Tile& tile, i32 row, i32 half, i32 column, float highest, float sum,
                      const float (&values)[COLUMNS][4]) {
    const i32 at = column + threadIdx.x % 4 * 2, head = tile.first + row % GROUP;
    if (tile.splits == 1) {
        float scale;
        const float inverse = inverse_sum(p, head, highest, sum, scale) * scale;
        T* out = p.out + row_offset(tile, row, static_cast<i64>(p.heads) * VALUE_DIM, VALUE_DIM) + at;
#pragma unroll
        for (i32 i = 0; i < COLUMNS; ++i) {
            *reinterpret_cast<u32*>(out + i * 8) =
                pack_pair<T>(values[i][2 * half] * inverse, values[i][2 * half + 1] * inverse);
        }
        return;
    }
    const i64 part = part_of(p, tile, row / GROUP, head);
    if (at == 0) {
        p.state[part * 2] = highest;
        p.state[part * 2 + 1] = sum;
    }
    float* out = p.partial + part * VALUE_DIM + at;
#pragma unroll
    for (i32 i = 0; i < COLUMNS; ++i) {
        *reinterpret_cast<Pair*>(out + i * 8) = pair_of(values[i][2 * half], values[i][2 * half + 1]);
    }
}

// Two tiles of weights, 16 positions, as a left factor.
DEVICE void pack_weights(const float (&a)[4], const float (&b)[4], u32 (&out)[4]) {
    out[0] = pack_pair<T>(a[0], a[1]);
    out[1] = pack_pair<T>(a[2], a[3]);
    out[2] = pack_pair<T>(b[0], b[1]);
    out[3] = pack_pair<T>(b[2], b[3]);
}

// sums += weights . values, of 16 positions and 8 * COLUMNS numbers; a lane has columns 8i + 2 * (lane % 4) and the next.
template <i32 COLUMNS>
DEVICE void multiply_values(const u32 (&weights)[4], const T* values, float (&sums)[COLUMNS][4]) {
    const i32 lane = threadIdx.x % WARP, matrix = lane / 8;
#pragma unroll
    for (i32 i = 0; i < COLUMNS; i += 2) {
        u32 right[4];
        load_matrices_transposed(right, values + (matrix % 2 * 8 + lane % 8) * STRIDE + i * 8 + matrix / 2 * 8);
        multiply_add(sums[i], weights, right[0], right[1], T{});
        multiply_add(sums[i + 1], weights, right[2], right[3], T{});
    }
}
