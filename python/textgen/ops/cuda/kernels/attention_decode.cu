// Paged attention of single tokens (arXiv 2309.06180) where tensor cores do not take the numbers or the heads: the context
// of each is cut into parts that run side by side (Flash-Decoding) with an online softmax (arXiv 1805.02867).
//
// The limit is the memory, so each number of the cache is read once for all query heads that share it, by 16 bytes, from
// there into registers. A warp takes KEYS positions at a time: LANES lanes share one, each has QUADS times 16 bytes of its
// key and of its value, and of all GROUP queries and sums. Nothing is exchanged but dot products, until the end.
#include "attention.cuh"

constexpr i32 UNROLL = TG_UNROLL;  // times KEYS positions whose loads are under way together

constexpr i32 THREADS = 128, WARPS = THREADS / WARP;
constexpr i32 WIDTH = PER_QUAD<S>;
constexpr i32 ALL_QUADS = DIM / WIDTH;
constexpr i32 LANES = ALL_QUADS > 16 ? 32 : ALL_QUADS > 8 ? 16 : ALL_QUADS > 4 ? 8 : 4;
constexpr i32 QUADS = (ALL_QUADS + LANES - 1) / LANES;
constexpr i32 KEYS = WARP / LANES;
constexpr i32 STEP = KEYS * UNROLL;
static_assert(DIM % WIDTH == 0, "a head is whole times 16 bytes");

// The softmax so far over the positions that a lane has seen, of one query head.
struct Running {
    float highest, sum;
    float value[QUADS][WIDTH];
};

DEVICE void load_queries(const Attention& p, const Tile& tile, i32 column, float (&query)[GROUP][QUADS][WIDTH]) {
    constexpr i32 PART = PER_QUAD<T>;
#pragma unroll
    for (i32 g = 0; g < GROUP; ++g) {
        const T* from = p.query + tile.token * p.query_stride + static_cast<i64>(tile.first + g) * DIM;
#pragma unroll
        for (i32 i = 0; i < QUADS; ++i) {
            const i32 quad = column + i * LANES;
            const bool real = g < tile.heads && quad < ALL_QUADS;
#pragma unroll
            for (i32 at = 0; at < WIDTH; at += PART) {
                float some[PART];
                unpack(real ? load_quad(from + quad * WIDTH + at) : Quad{}, some, T{});
#pragma unroll
                for (i32 j = 0; j < PART; ++j) query[g][i][at + j] = some[j] * query_scale(p);
            }
        }
    }
}

// A position's dot products, in each of its lanes.
DEVICE void dot_products(const float (&query)[GROUP][QUADS][WIDTH], const Quad (&key)[QUADS], float (&out)[GROUP]) {
#pragma unroll
    for (i32 g = 0; g < GROUP; ++g) out[g] = 0.0f;
#pragma unroll
    for (i32 i = 0; i < QUADS; ++i) {
        float k[WIDTH];
        unpack(key[i], k, S{});
#pragma unroll
        for (i32 g = 0; g < GROUP; ++g) {
#pragma unroll
            for (i32 j = 0; j < WIDTH; ++j) out[g] += query[g][i][j] * k[j];
        }
    }
#pragma unroll
    for (i32 g = 0; g < GROUP; ++g) out[g] = lanes_sum<LANES>(out[g]);
}

// STEP positions from `at` on. A lane whose position is not in the part reads the part's last instead, which it sees anyway.
DEVICE void attend(const Attention& p, const Tile& tile, i32 at, const float (&query)[GROUP][QUADS][WIDTH],
                   Running (&running)[GROUP]) {
    const i32 lane = threadIdx.x % WARP, column = lane % LANES;
    Quad key[UNROLL][QUADS], value[UNROLL][QUADS];
    float key_scale[UNROLL], value_scale[UNROLL];
#pragma unroll
    for (i32 u = 0; u < UNROLL; ++u) {
        const i32 position = min(at + u * KEYS + lane / LANES, tile.to - 1);
        const i64 row = cache_row(p, tile, position);
        if constexpr (SCALED<S>) {
            key_scale[u] = p.key_scales[row];
            value_scale[u] = p.value_scales[row];
        }
#pragma unroll
        for (i32 i = 0; i < QUADS; ++i) {
            const i32 quad = column + i * LANES;
            const bool real = ALL_QUADS % LANES == 0 || quad < ALL_QUADS;
            key[u][i] = real ? load_streaming(p.keys + row * DIM + quad * WIDTH) : Quad{};
            value[u][i] = real ? load_streaming(p.values + row * DIM + quad * WIDTH) : Quad{};
        }
    }
    float scores[UNROLL][GROUP];
#pragma unroll
    for (i32 u = 0; u < UNROLL; ++u) {
        const i32 position = at + u * KEYS + lane / LANES;
        dot_products(query, key[u], scores[u]);
#pragma unroll
        for (i32 g = 0; g < GROUP; ++g) {
            if constexpr (SCALED<S>) scores[u][g] *= key_scale[u];
            const float x = score(p, scores[u][g], tile.first + min(g, tile.heads - 1), tile.position - position);
            scores[u][g] = position < tile.to ? x : HIDDEN;
        }
    }
#pragma unroll
    for (i32 g = 0; g < GROUP; ++g) {
        float highest = running[g].highest;
#pragma unroll
        for (i32 u = 0; u < UNROLL; ++u) highest = fmaxf(highest, scores[u][g]);
        const float old = rescale(running[g].highest, highest);
        running[g].highest = highest;
        running[g].sum *= old;
#pragma unroll
        for (i32 i = 0; i < QUADS; ++i) {
#pragma unroll
            for (i32 j = 0; j < WIDTH; ++j) running[g].value[i][j] *= old;
        }
#pragma unroll
        for (i32 u = 0; u < UNROLL; ++u) {
            scores[u][g] = rescale(scores[u][g], highest);
            running[g].sum += scores[u][g];
            if constexpr (SCALED<S>) scores[u][g] *= value_scale[u];
        }
    }
#pragma unroll
    for (i32 u = 0; u < UNROLL; ++u) {
#pragma unroll
        for (i32 i = 0; i < QUADS; ++i) {
            float v[WIDTH];
            unpack(value[u][i], v, S{});
#pragma unroll
            for (i32 g = 0; g < GROUP; ++g) {
#pragma unroll
                for (i32 j = 0; j < WIDTH; ++j) running[g].value[i][j] += scores[u][g] * v[j];
            }
        }
    }
}

// What the lanes of one column of a warp have seen, in each of them.
DEVICE void join_lanes(Running& running) {
#pragma unroll
    for (i32 step = LANES; step < static_cast<i32>(WARP); step *= 2) {
        const float other = __shfl_xor_sync(ALL_LANES, running.highest, step);
        const float highest = fmaxf(running.highest, other);
        const float mine = rescale(running.highest, highest), theirs = rescale(other, highest);
        running.highest = highest;
        running.sum = running.sum * mine + __shfl_xor_sync(ALL_LANES, running.sum, step) * theirs;
#pragma unroll
        for (i32 i = 0; i < QUADS; ++i) {
#pragma unroll
            for (i32 j = 0; j < WIDTH; ++j) {
                const float more = __shfl_xor_sync(ALL_LANES, running.value[i][j], step);
                running.value[i][j] = running.value[i][j] * mine + more * theirs;
            }
        }
    }
}

KERNEL(attention_decode, Attention, THREADS) {
    __shared__ float values[WARPS][GROUP][DIM];
    __shared__ float states[WARPS][GROUP][2];
    const Tile tile = tile_of(p);
    if (is_empty(p, tile)) return;
    const i32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, column = lane % LANES;
    float query[GROUP][QUADS][WIDTH];
    load_queries(p, tile, column, query);
    Running running[GROUP];
#pragma unroll
    for (i32 g = 0; g < GROUP; ++g) {
        running[g] = {LOWEST, 0.0f, {}};
    }
    for (i32 at = tile.from + warp * STEP; at < tile.to; at += WARPS * STEP) {
        attend(p, tile, at, query, running);
    }
#pragma unroll
    for (i32 g = 0; g < GROUP; ++g) {
        join_lanes(running[g]);
        if (lane < LANES) {
            states[warp][g][0] = running[g].highest;
            states[warp][g][1] = running[g].sum;
#pragma unroll
            for (i32 i = 0; i < QUADS; ++i) {
                const i32 quad = column + i * LANES;
#pragma unroll
                for (i32 j = 0; j < WIDTH; ++j) {
                    if (quad < ALL_QUADS) values[warp][g][quad * WIDTH + j] = running[g].value[i][j];
                }
            }
        }
    }
    __syncthreads();
    join_warps<WARPS>(p, tile, &values[0][0][0], &states[0][0][0]);
}
