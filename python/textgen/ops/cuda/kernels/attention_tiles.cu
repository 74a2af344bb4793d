// Paged attention on the tensor cores: prompt chunks and single tokens in one launch, each in its own way.
//
// Chunk: a block takes ROWS rows, tokens of one segment times the GROUP query heads that share a kv head, so that keys and
// values are read once for all of them. Each of four warps has 16 rows, and all go through the context together, KEYS
// positions at a time, of which the next are on their way into shared memory while these are multiplied.
//
// Single token: the heads of a group are the rows of every warp, filled up to 16; what is bound by the memory has products
// to spare. Each warp goes through its own positions of the part, 16 at a time, without waiting for the others: while keys
// are multiplied their values are on the way, and the other way round (Flash-Decoding).
#include "attention_rows.cuh"

constexpr i32 ROWS = TG_ROWS;
constexpr i32 KEYS = TG_KEYS;  // of a chunk's tile: 16, or a multiple

constexpr i32 THREADS = ROWS * 2, WARPS = THREADS / WARP;
constexpr i32 OWN = 16;  // positions of a warp at a time, of a single token
constexpr i32 COLUMNS = DIM / 8;
static_assert(KEYS % 16 == 0 && ROWS % MATRIX == 0 && DIM == VALUE_DIM, "matrices are 16 wide");
static_assert(GROUP <= MATRIX, "the heads of a single token are the rows of a warp");

// Bytes of shared memory. A chunk has queries, then keys and values: two tiles of each, or one that is fetched and one
// that it is widened to.
constexpr i32 KEYS_TILE = KEYS * STRIDE * 2;
constexpr i32 CHUNK_BYTES = ROWS * STRIDE * 2 + 4 * KEYS_TILE;
constexpr i32 NARROW_CHUNK_BYTES = ROWS * STRIDE * 2 + 2 * (FETCHED_BYTES<KEYS> + KEYS_TILE);
// A single token has queries, then of each warp keys and values, and one tile that either is widened to. In the end sums
// take their place.
constexpr i32 OWN_BYTES = 2 * FETCHED_BYTES<OWN> + (NARROW<S> ? OWN * STRIDE * 2 : 0);
constexpr i32 SINGLE_BYTES = MATRIX * STRIDE * 2 + WARPS * OWN_BYTES;
constexpr i32 JOINED_BYTES = WARPS * GROUP * (DIM + 2) * 4;
constexpr i32 NEEDED_1 = NARROW<S> ? NARROW_CHUNK_BYTES : CHUNK_BYTES;
constexpr i32 NEEDED_2 = SINGLE_BYTES > JOINED_BYTES ? SINGLE_BYTES : JOINED_BYTES;
static_assert(TG_SHARED_BYTES == (NEEDED_1 > NEEDED_2 ? NEEDED_1 : NEEDED_2), "the launch knows what is needed");

DEVICE void store_chunk(const Attention& p, const Tile& tile, const Running& running, const float (&values)[COLUMNS][4]) {
    const i32 lane = threadIdx.x % WARP;
#pragma unroll
    for (i32 half = 0; half < 2; ++half) {
        const i32 row = threadIdx.x / WARP * MATRIX + lane / 4 + half * 8;
        const float sum = lanes_sum<4>(running.sum[half]);
        if (is_real(tile, row)) store_row(p, tile, row, half, 0, running.highest[half], sum, values);
    }
}

DEVICE void attend_chunk(const Attention& p, const Tile& tile, unsigned char* shared) {
    T* const query = reinterpret_cast<T*>(shared);
    unsigned char* const fetched = shared + ROWS * STRIDE * 2;
    T* const widened = reinterpret_cast<T*>(fetched + 2 * FETCHED_BYTES<KEYS>);
    // The first and the last position that are seen stand for those beyond, which nobody sees.
    const auto begin = [&](i32 at, i32 buffer) {
        const auto rows = [&](i32 i) { return cache_row(p, tile, max(min(at + i, tile.to - 1), tile.from)); };
        unsigned char* const to = fetched + buffer * 2 * FETCHED_BYTES<KEYS>;
        fetch<KEYS, THREADS>(p.keys, p.key_scales, to, threadIdx.x, rows);
        fetch<KEYS, THREADS>(p.values, p.value_scales, to + FETCHED_BYTES<KEYS>, threadIdx.x, rows);
        copy_commit();
    };
    // Wherever the window of the first token begins: so a token's sums do not depend on where the chunk does.
    const i32 from = tile.from / KEYS * KEYS;
    begin(from, 0);
    stage_query<ROWS, THREADS>(p, tile, query);
    __syncthreads();
    const i32 first = threadIdx.x / WARP * MATRIX;
    const Queries queries(query + first * STRIDE);
    Running running;
    float values[COLUMNS][4] = {};
    i32 buffer = 0;
    for (i32 at = from; at < tile.to; at += KEYS) {
        copy_wait<0>();
        __syncthreads();  // what all have copied is there, and nobody reads the tile before it any more
        const T* keys;
        if constexpr (NARROW<S>) {
            widen_all<KEYS, THREADS, S>(fetched, widened, threadIdx.x);
            widen_all<KEYS, THREADS, S>(fetched + FETCHED_BYTES<KEYS>, widened + KEYS * STRIDE, threadIdx.x);
            __syncthreads();
            keys = widened;
        } else {
            keys = reinterpret_cast<const T*>(fetched + buffer * 2 * FETCHED_BYTES<KEYS>);
            buffer ^= 1;
        }
        if (at + KEYS < tile.to) begin(at + KEYS, buffer);
        float scores[KEYS / 8][4] = {};
        multiply_keys(queries, keys, scores);
        form_scores(p, tile, first, at, scores);
        float highest[2];
        row_highest(scores, running, highest);
        soften(highest, scores, running, values);
#pragma unroll
        for (i32 n = 0; n < KEYS / 8; n += 2) {
            u32 weights[4];
            pack_weights(scores[n], scores[n + 1], weights);
            multiply_values(weights, keys + (KEYS + n * 8) * STRIDE, values);
        }
    }
    store_chunk(p, tile, running, values);
}

// What a warp has seen, beside what the others have; then all of it is joined.
DEVICE void store_single(const Attention& p, const Tile& tile, Running& running, const float (&values)[COLUMNS][4],
                         float* shared) {
    const i32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float* const states = shared + WARPS * GROUP * DIM;
    __syncthreads();  // nobody reads what lay there
#pragma unroll
    for (i32 half = 0; half < 2; ++half) {
        const i32 row = lane / 4 + half * 8, at = warp * GROUP + row;
        const float sum = lanes_sum<4>(running.sum[half]);
        if (row >= GROUP) continue;
        if (lane % 4 == 0) {
            states[at * 2] = running.highest[half];
            states[at * 2 + 1] = sum;
        }
#pragma unroll
        for (i32 i = 0; i < COLUMNS; ++i) {
            float* to = shared + at * DIM + i * 8 + lane % 4 * 2;
            to[0] = values[i][2 * half];
            to[1] = values[i][2 * half + 1];
        }
    }
    __syncthreads();
    join_warps<WARPS>(p, tile, shared, states);
}

DEVICE void attend_single(const Attention& p, const Tile& tile, unsigned char* shared) {
    const i32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    T* const query = reinterpret_cast<T*>(shared);
    unsigned char* const own = shared + MATRIX * STRIDE * 2 + warp * OWN_BYTES;
    unsigned char* const own_values = own + FETCHED_BYTES<OWN>;
    T* const widened = reinterpret_cast<T*>(own_values + FETCHED_BYTES<OWN>);
    stage_query<MATRIX, THREADS>(p, tile, query);
    __syncthreads();
    const Queries queries(query);
    Running running;
    float values[COLUMNS][4] = {};

    // Each lane has the row of a position; it was read from the table one tile before it is needed.
    const auto row_at = [&](i32 at) { return cache_row(p, tile, min(at + lane % OWN, tile.to - 1)); };
    i64 row = row_at(tile.from + warp * OWN);
    const auto rows = [&](i32 i) { return __shfl_sync(ALL_LANES, row, i); };
    const auto begin = [&](const S* cache, const float* scales, unsigned char* to, bool wanted) {
        if (wanted) fetch<OWN, WARP>(cache, scales, to, lane, rows);
        copy_commit();
    };
    const i32 first = tile.from + warp * OWN;
    begin(p.keys, p.key_scales, own, first < tile.to);
    begin(p.values, p.value_scales, own_values, first < tile.to);
    for (i32 at = first; at < tile.to; at += WARPS * OWN) {
        const i32 next = at + WARPS * OWN;
        row = row_at(next);
        copy_wait<1>();
        __syncwarp();  // the keys are there
        if constexpr (NARROW<S>) {
            widen_all<OWN, WARP, S>(own, widened, lane);
            __syncwarp();
            begin(p.keys, p.key_scales, own, next < tile.to);
        }
        float scores[OWN / 8][4] = {};
        multiply_keys(queries, NARROW<S> ? widened : reinterpret_cast<const T*>(own), scores);
        if constexpr (!NARROW<S>) {
            __syncwarp();
            begin(p.keys, p.key_scales, own, next < tile.to);
        }
        form_scores(p, tile, 0, at, scores);
        float highest[2];
        row_highest(scores, running, highest);
        soften(highest, scores, running, values);
        u32 weights[4];
        pack_weights(scores[0], scores[1], weights);
        copy_wait<1>();
        __syncwarp();  // the values are there
        if constexpr (NARROW<S>) {
            widen_all<OWN, WARP, S>(own_values, widened, lane);
            __syncwarp();
            begin(p.values, p.value_scales, own_values, next < tile.to);
        }
        multiply_values(weights, NARROW<S> ? widened : reinterpret_cast<const T*>(own_values), values);
        __syncwarp();
        if constexpr (!NARROW<S>) begin(p.values, p.value_scales, own_values, next < tile.to);
    }
    copy_wait<0>();
    store_single(p, tile, running, values, reinterpret_cast<float*>(shared));
}

// Dynamic shared memory: TG_SHARED_BYTES.
KERNEL(attention_tiles, Attention, THREADS, DIM <= 128 ? 3 : 2) {
    SHARED_MEMORY(shared);
    const Tile tile = tile_of(p);
    if (is_empty(p, tile)) return;
    if (tile.single) {
        attend_single(p, tile, shared);
    } else {
        attend_chunk(p, tile, shared);
    }
}
