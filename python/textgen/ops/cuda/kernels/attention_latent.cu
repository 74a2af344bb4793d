// Latent attention on the tensor cores (arXiv 2405.04434), where a position's value is the first numbers of its key: each
// number of the cache is read once for up to ROWS rows, which are the heads of a token, or of several.
//
// Four warps share 16 rows. Of KEYS positions that lie in shared memory each multiplies a quarter of the positions, then
// all tell each other the highest score and their weights, and each sums a quarter of the values' numbers: registers hold
// no more. The next positions are on their way meanwhile.
#include "attention_rows.cuh"

constexpr i32 ROWS = TG_ROWS;
constexpr i32 KEYS = 32;

constexpr i32 PARTS = 4;                         // warps that share rows
constexpr i32 THREADS = ROWS / MATRIX * PARTS * WARP;
constexpr i32 COLUMNS = VALUE_DIM / 8 / PARTS;   // of a warp
constexpr i32 WEIGHTS_STRIDE = KEYS + 8;
static_assert(DIM % 32 == 0 && VALUE_DIM % 64 == 0 && VALUE_DIM <= DIM, "halves of 16 columns for each warp");
static_assert(KEYS == PARTS * 8 && GROUP <= ROWS, "eight positions for each warp");

// Shared memory: queries, two tiles or one that is fetched and one that it is widened to, weights, and numbers of rows.
constexpr i32 TILE_BYTES = KEYS * STRIDE * 2;
constexpr i32 QUERY_BYTES = ROWS * STRIDE * 2;
constexpr i32 WEIGHTS_BYTES = ROWS * WEIGHTS_STRIDE * 2;
static_assert(TG_SHARED_BYTES == QUERY_BYTES + FETCHED_BYTES<KEYS> + TILE_BYTES + WEIGHTS_BYTES + 2 * ROWS * PARTS * 4,
              "the launch knows what is needed");

// Of 16 rows and 8 positions. Sums that wait for each other would take longer than the products.
DEVICE void multiply_latents(const T* query, const T* keys, float (&scores)[1][4]) {
    const i32 lane = threadIdx.x % WARP, matrix = lane / 8;
    float sums[4][4] = {};
#pragma unroll
    for (i32 pair = 0; pair < DIM / 32; ++pair) {
        u32 right[4], left[4];
        load_matrices(right, keys + lane % 8 * STRIDE + pair * 32 + matrix * 8);
        load_left(left, query + pair * 32);
        multiply_add(sums[pair % 2 * 2], left, right[0], right[1], T{});
        load_left(left, query + pair * 32 + 16);
        multiply_add(sums[pair % 2 * 2 + 1], left, right[2], right[3], T{});
    }
#pragma unroll
    for (i32 i = 0; i < 4; ++i) scores[0][i] = sums[0][i] + sums[1][i] + (sums[2][i] + sums[3][i]);
}

// The largest of what the warps of a row tell, or the sum.
DEVICE float across(const float* told, bool sum) {
    return sum ? told[0] + told[1] + (told[2] + told[3]) : fmaxf(fmaxf(told[0], told[1]), fmaxf(told[2], told[3]));
}

// sums: [ROWS, PARTS] in shared memory. first: of the tile's rows, the warp's first; part: which of its columns.
DEVICE void store(const Attention& p, const Tile& tile, i32 first, i32 part, const Running& running,
                  const float (&values)[COLUMNS][4], float* sums) {
    const i32 lane = threadIdx.x % WARP;
#pragma unroll
    for (i32 half = 0; half < 2; ++half) {
        const float mine = lanes_sum<4>(running.sum[half]);
        if (lane % 4 == 0) sums[(first + lane / 4 + half * 8) * PARTS + part] = mine;
    }
    __syncthreads();
#pragma unroll
    for (i32 half = 0; half < 2; ++half) {
        const i32 row = first + lane / 4 + half * 8;
        if (!is_real(tile, row)) continue;
        const float sum = across(sums + row * PARTS, true);
        store_row(p, tile, row, half, part * COLUMNS * 8, running.highest[half], sum, values);
    }
}

// Dynamic shared memory: TG_SHARED_BYTES.
KERNEL(attention_latent, Attention, THREADS, ROWS == 16 ? 2 : 1) {
    SHARED_MEMORY(shared);
    const Tile tile = tile_of(p);
    if (is_empty(p, tile)) return;
    T* const query = reinterpret_cast<T*>(shared);
    unsigned char* const fetched = shared + QUERY_BYTES;
    T* const widened = reinterpret_cast<T*>(fetched + FETCHED_BYTES<KEYS>);
    T* const weights = reinterpret_cast<T*>(fetched + FETCHED_BYTES<KEYS> + TILE_BYTES);
    float* const highest_of = reinterpret_cast<float*>(weights + ROWS * WEIGHTS_STRIDE);
    float* const sums_of = highest_of + ROWS * PARTS;

    const i32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const i32 first = warp / PARTS * MATRIX, part = warp % PARTS;
    // The last position that is seen stands for those behind it, which nobody sees.
    const auto begin = [&](i32 at, i32 buffer) {
        const auto rows = [&](i32 i) { return cache_row(p, tile, min(at + i, tile.to - 1)); };
        fetch<KEYS, THREADS>(p.keys, p.key_scales, fetched + buffer * TILE_BYTES, threadIdx.x, rows);
        copy_commit();
    };
    begin(tile.from, 0);
    stage_query<ROWS, THREADS>(p, tile, query);
    Running running;
    float values[COLUMNS][4] = {};
    i32 buffer = 0;
    for (i32 at = tile.from; at < tile.to; at += KEYS) {
        copy_wait<0>();
        __syncthreads();  // what all have copied is there, and nobody reads the tile before it any more
        const T* keys;
        if constexpr (NARROW<S>) {
            widen_all<KEYS, THREADS, S>(fetched, widened, threadIdx.x);
            __syncthreads();
            keys = widened;
        } else {
            keys = reinterpret_cast<const T*>(fetched + buffer * TILE_BYTES);
            buffer ^= 1;
        }
        if (at + KEYS < tile.to) begin(at + KEYS, buffer);
        float scores[1][4], highest[2];
        multiply_latents(query + first * STRIDE, keys + part * 8 * STRIDE, scores);
        form_scores(p, tile, first, at + part * 8, scores);
        row_highest(scores, running, highest);
#pragma unroll
        for (i32 half = 0; half < 2; ++half) {
            if (lane % 4 == 0) highest_of[(first + lane / 4 + half * 8) * PARTS + part] = highest[half];
        }
        __syncthreads();
#pragma unroll
        for (i32 half = 0; half < 2; ++half) {
            highest[half] = across(highest_of + (first + lane / 4 + half * 8) * PARTS, false);
        }
        soften(highest, scores, running, values);
#pragma unroll
        for (i32 half = 0; half < 2; ++half) {
            T* const to = weights + (first + lane / 4 + half * 8) * WEIGHTS_STRIDE + part * 8 + lane % 4 * 2;
            *reinterpret_cast<u32*>(to) = pack_pair<T>(scores[0][2 * half], scores[0][2 * half + 1]);
        }
        __syncthreads();
#pragma unroll
        for (i32 key = 0; key < KEYS; key += 16) {
            u32 left[4];
            load_left(left, weights + first * WEIGHTS_STRIDE + key, WEIGHTS_STRIDE);
            multiply_values(left, keys + key * STRIDE + part * COLUMNS * 8, values);
        }
    }
    store(p, tile, first, part, running, values, sums_of);
}
