// Paged attention of single tokens (arXiv 2309.06180), the context of each cut into parts that run side by side
// (Flash-Decoding) with an online softmax (arXiv 1805.02867), and attention_combine, which joins the parts.
//
// The limit is the memory, so each number of the cache is read once for all query heads that share it, by 16 bytes, from
// there into registers. A warp takes KEYS positions at a time: LANES lanes share one, each has QUADS times 16 bytes of its
// key and of its value, and of all GROUP queries and sums. Nothing is exchanged but dot products, until the end.
#include "attention.cuh"

constexpr i32 GROUP = TG_GROUP;    // query heads of a block, of those that share a kv head
constexpr i32 UNROLL = TG_UNROLL;  // times KEYS positions whose loads are under way together

constexpr i32 THREADS = 128, WARPS = THREADS / WARP;
constexpr i32 WIDTH = PER_QUAD<T>;
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

struct Part {  // the work of a block
    const i32* table;
    i32 token;
    i32 kv_head, first, count;         // query heads first .. first + count
    i32 position;                      // of the query
    i32 from, to;                      // positions to attend to
};

// work: [rows, 3], a token, its row of the tables and its position. Grid: rows, kv heads times groups, splits.
DEVICE Part part_of(const Attention& p) {
    const i32 share = p.heads / p.kv_heads, groups = (share + GROUP - 1) / GROUP;
    Part part;
    const i32* work = p.work + 3 * blockIdx.x;
    part.token = work[0];
    part.table = p.tables + work[1] * p.table_stride;
    part.kv_head = blockIdx.y / groups;
    const i32 skipped = blockIdx.y % groups * GROUP;
    part.first = part.kv_head * share + skipped;
    part.count = min(GROUP, share - skipped);
    part.position = work[2];
    const i32 end = part.position + 1;
    const i32 begin = p.window == 0 ? 0 : max(end - p.window, 0);
    part.from = begin + blockIdx.z * p.chunk;
    part.to = min(part.from + p.chunk, end);
    return part;
}

DEVICE void load_queries(const Attention& p, const Part& part, i32 column, float (&query)[GROUP][QUADS][WIDTH]) {
#pragma unroll
    for (i32 g = 0; g < GROUP; ++g) {
        const T* from = p.query + part.token * p.query_stride + static_cast<i64>(part.first + g) * DIM;
#pragma unroll
        for (i32 i = 0; i < QUADS; ++i) {
            const i32 quad = column + i * LANES;
            const bool real = g < part.count && quad < ALL_QUADS;
            unpack(real ? load_quad(from + quad * WIDTH) : Quad{}, query[g][i], T{});
#pragma unroll
            for (i32 j = 0; j < WIDTH; ++j) query[g][i][j] *= query_scale(p);
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
        unpack(key[i], k, T{});
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
DEVICE void attend(const Attention& p, const Part& part, i32 at, const float (&query)[GROUP][QUADS][WIDTH],
                   Running (&running)[GROUP]) {
    const i32 lane = threadIdx.x % WARP, column = lane % LANES;
    Quad key[UNROLL][QUADS], value[UNROLL][QUADS];
#pragma unroll
    for (i32 u = 0; u < UNROLL; ++u) {
        const i32 position = min(at + u * KEYS + lane / LANES, part.to - 1);
        const i64 offset = cached(p, part.table, position, part.kv_head);
#pragma unroll
        for (i32 i = 0; i < QUADS; ++i) {
            const i32 quad = column + i * LANES;
            const bool real = ALL_QUADS % LANES == 0 || quad < ALL_QUADS;
            key[u][i] = real ? load_streaming(p.keys + offset + quad * WIDTH) : Quad{};
            value[u][i] = real ? load_streaming(p.values + offset + quad * WIDTH) : Quad{};
        }
    }
    float scores[UNROLL][GROUP];
#pragma unroll
    for (i32 u = 0; u < UNROLL; ++u) {
        const i32 position = at + u * KEYS + lane / LANES;
        dot_products(query, key[u], scores[u]);
#pragma unroll
        for (i32 g = 0; g < GROUP; ++g) {
            const float x = score(p, scores[u][g], part.first + min(g, part.count - 1), part.position - position);
            scores[u][g] = position < part.to ? x : HIDDEN;
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
        }
    }
#pragma unroll
    for (i32 u = 0; u < UNROLL; ++u) {
#pragma unroll
        for (i32 i = 0; i < QUADS; ++i) {
            float v[WIDTH];
            unpack(value[u][i], v, T{});
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
    const Part part = part_of(p);
    const i64 row = static_cast<i64>(blockIdx.x) * p.heads + part.first;
    if (part.from >= part.to) {  // a context that has fewer parts than another
        if (threadIdx.x < static_cast<u32>(part.count)) {
            float* state = p.state + ((row + threadIdx.x) * p.splits + blockIdx.z) * 2;
            state[0] = LOWEST;
            state[1] = 0.0f;
        }
        return;
    }
    const i32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, column = lane % LANES;
    float query[GROUP][QUADS][WIDTH];
    load_queries(p, part, column, query);
    Running running[GROUP];
#pragma unroll
    for (i32 g = 0; g < GROUP; ++g) {
        running[g] = {LOWEST, 0.0f, {}};
    }
    for (i32 at = part.from + warp * STEP; at < part.to; at += WARPS * STEP) {
        attend(p, part, at, query, running);
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
    for (i32 item = threadIdx.x; item < part.count * DIM; item += THREADS) {
        const i32 g = item / DIM, i = item % DIM;
        float highest = LOWEST, sum = 0.0f, value = 0.0f;
#pragma unroll
        for (i32 w = 0; w < WARPS; ++w) highest = fmaxf(highest, states[w][g][0]);
#pragma unroll
        for (i32 w = 0; w < WARPS; ++w) {
            const float scale = rescale(states[w][g][0], highest);
            sum += states[w][g][1] * scale;
            value += values[w][g][i] * scale;
        }
        if (p.splits == 1) {
            float scale;
            const float inverse = inverse_sum(p, part.first + g, highest, sum, scale);
            p.out[(static_cast<i64>(part.token) * p.heads + part.first + g) * DIM + i] = from_float<T>(value * scale * inverse);
        } else {
            const i64 at = (row + g) * p.splits + blockIdx.z;
            p.partial[at * DIM + i] = value;
            if (i == 0) {
                p.state[at * 2] = highest;
                p.state[at * 2 + 1] = sum;
            }
        }
    }
}

// Grid: rows of work, heads. A part without positions has a sum of 0, and its values are not read.
KERNEL(attention_combine, Attention, THREADS) {
    const i32 head = blockIdx.y;
    const i64 row = static_cast<i64>(blockIdx.x) * p.heads + head;
    const float* state = p.state + row * p.splits * 2;
    float highest = LOWEST, sum = 0.0f;
    for (i32 split = 0; split < p.splits; ++split) highest = fmaxf(highest, state[2 * split]);
    for (i32 split = 0; split < p.splits; ++split) sum += state[2 * split + 1] * rescale(state[2 * split], highest);
    float scale;
    const float inverse = inverse_sum(p, head, highest, sum, scale);
    for (i32 i = threadIdx.x; i < DIM; i += THREADS) {
        float value = 0.0f;
        for (i32 split = 0; split < p.splits; ++split) {
            if (state[2 * split + 1] == 0.0f) continue;
            value += p.partial[(row * p.splits + split) * DIM + i] * rescale(state[2 * split], highest);
        }
        p.out[(static_cast<i64>(p.work[3 * blockIdx.x]) * p.heads + head) * DIM + i] =
            from_float<T>(value * scale * inverse);
    }
}
