// Draws a token from each row of logits: temperature, then top-k, top-p (arXiv 1904.09751) and min-p (arXiv 2407.01082) as
// filters one after the other, then the first token, by id, whose cumulative share exceeds a given number. Nothing is
// sorted: a filter keeps what is not below some score, and that score is found byte by byte from histograms.
//
// Shares are whole numbers of 2^-40 of the likeliest token's. Their sums are exact, so a row's token depends neither on
// the order of threads nor on the batch. A block takes a row.
#include "device.cuh"

struct Sample {
    const float* logits;       // [rows, vocab], minus infinity where nothing may be drawn
    const float* exponent;     // [rows] log2(e) / temperature, finite; 0: the likeliest token
    const i32* top_k;          // [rows], 0: off
    const float* top_p;        // [rows], 1: off
    const float* min_p;        // [rows], 0: off
    const double* u;           // [rows] in [0, 1)
    i64* token;                // [rows]
    float* normaliser;         // [rows] log of the sum of exp(logits)
    i64 stride;                // of a row of logits
    i32 vocab;
    i32 reserved;
};

constexpr i32 THREADS = 512, WARPS = THREADS / WARP;
constexpr i32 BUCKETS = 256;
constexpr i32 LAST_SPAN = 16 * WARP;  // ids that one warp looks through
constexpr float UNIT = 1099511627776.0f;  // 2^40

struct Shared {
    float highest[WARPS], sum[WARPS];
    i32 likeliest[WARPS];
    u64 sums[WARPS];
    u32 counts[BUCKETS];
    u64 masses[BUCKETS];
    u32 bucket;
    i32 found;
    u64 above;
};

struct Row {
    const float* logits;
    i32 vocab;
    float highest;
    float exponent;
    float min_p;
    u32 lowest;  // keys below are filtered out
};

// The order of scores as that of whole numbers.
DEVICE u32 key_of(float score) {
    const u32 bits = bits_of_float(score);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// How far a token is below the likeliest.
DEVICE float score_of(const Row& row, i32 id) { return row.logits[id] - row.highest; }

// 0 for what is not a number.
DEVICE u64 share_of(const Row& row, float score) {
    return score <= 0.0f ? static_cast<u64>(exp2_fast(score * row.exponent) * UNIT + 0.5f) : 0;
}

// What a token takes of the draw once it is filtered.
DEVICE u64 kept_share(const Row& row, i32 id) {
    const float score = score_of(row, id);
    const bool kept = key_of(score) >= row.lowest && exp2_fast(score * row.exponent) >= row.min_p;
    return kept ? share_of(row, score) : 0;
}

DEVICE u64 lanes_total(u64 x) {
#pragma unroll
    for (u32 step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

// The sum over a lane and those before it.
DEVICE u64 lanes_upto(u64 x) {
    const u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (u32 step = 1; step < WARP; step *= 2) {
        const u64 before = __shfl_sync(ALL_LANES, x, (lane - step) % WARP);
        x += lane >= step ? before : 0;
    }
    return x;
}

// The likeliest token, the first of several, and the normaliser: one reading of the row.
DEVICE i32 summarize(Shared& shared, Row& row, float& normaliser) {
    const i32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float highest = -3.4028235e38f, sum = 0.0f;  // minus infinity is below every token
    i32 likeliest = row.vocab;
    for (i32 id = threadIdx.x; id < row.vocab; id += THREADS) {
        const float x = row.logits[id];
        if (x > highest) {
            sum *= exp2_fast((highest - x) * LOG2_E);
            highest = x;
            likeliest = id;
        }
        sum += exp2_fast((x - highest) * LOG2_E);
    }
#pragma unroll
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(ALL_LANES, highest, step);
        const float theirs = __shfl_xor_sync(ALL_LANES, sum, step);
        const i32 id = __shfl_xor_sync(ALL_LANES, likeliest, step);
        const float common = fmaxf(highest, other);
        sum = sum * exp2_fast((highest - common) * LOG2_E) + theirs * exp2_fast((other - common) * LOG2_E);
        likeliest = other > highest || (other == highest && id < likeliest) ? id : likeliest;
        highest = common;
    }
    if (lane == 0) {
        shared.highest[warp] = highest;
        shared.sum[warp] = sum;
        shared.likeliest[warp] = likeliest;
    }
    __syncthreads();
    row.highest = shared.highest[0];
    likeliest = shared.likeliest[0];
    for (i32 w = 1; w < WARPS; ++w) {
        const float other = shared.highest[w];
        const bool better = other > row.highest || (other == row.highest && shared.likeliest[w] < likeliest);
        likeliest = better ? shared.likeliest[w] : likeliest;
        row.highest = fmaxf(row.highest, other);
    }
    sum = 0.0f;
    for (i32 w = 0; w < WARPS; ++w) sum += shared.sum[w] * exp2_fast((shared.highest[w] - row.highest) * LOG2_E);
    normaliser = row.highest + logf(sum);
    return likeliest;
}

// The buckets of one byte of the keys, for those that begin with `prefix`, and are kept.
DEVICE void count_buckets(Shared& shared, const Row& row, u32 prefix, i32 shift) {
    __syncthreads();
    for (i32 i = threadIdx.x; i < BUCKETS; i += THREADS) {
        shared.counts[i] = 0;
        shared.masses[i] = 0;
    }
    __syncthreads();
    for (i32 id = threadIdx.x; id < row.vocab; id += THREADS) {
        const float score = score_of(row, id);
        const u32 key = key_of(score);
        if (key < row.lowest || (static_cast<u64>(key) >> (shift + 8)) != prefix) continue;
        atomicAdd(&shared.counts[key >> shift & 255], 1u);
        atomicAdd(&shared.masses[key >> shift & 255], share_of(row, score));
    }
    __syncthreads();
}

// By the first warp: the lowest bucket that has a key and beyond which less than `limit` lies, and how much that is.
DEVICE void pick_bucket(Shared& shared, bool by_count, u64 above, u64 limit) {
    constexpr i32 EACH = BUCKETS / WARP;
    const i32 lane = threadIdx.x, first = BUCKETS - 1 - lane * EACH;  // the first lane has the highest
    u64 own = 0;
    for (i32 i = 0; i < EACH; ++i) own += by_count ? shared.counts[first - i] : shared.masses[first - i];
    u64 running = above + lanes_upto(own) - own, beyond = 0;
    i32 candidate = -1;
    for (i32 i = 0; i < EACH && running < limit; ++i) {
        if (shared.counts[first - i] != 0) {
            candidate = first - i;
            beyond = running;
        }
        running += by_count ? shared.counts[first - i] : shared.masses[first - i];
    }
    const u32 lanes = __ballot_sync(ALL_LANES, candidate >= 0);
    if (lane == static_cast<i32>(WARP) - 1 - __clz(lanes)) {
        shared.bucket = candidate;
        shared.above = beyond;
    }
}

// The lowest key that a filter keeps: those beyond which less than `limit` lies, keys or what they share.
DEVICE u32 lowest_kept(Shared& shared, const Row& row, bool by_count, u64 limit) {
    u32 prefix = 0;
    u64 above = 0;  // what lies beyond the keys that begin with the prefix
    for (i32 shift = 24; shift >= 0; shift -= 8) {
        count_buckets(shared, row, prefix, shift);
        if (threadIdx.x < WARP) pick_bucket(shared, by_count, above, limit);
        __syncthreads();
        prefix = prefix << 8 | shared.bucket;
        above = shared.above;
    }
    return prefix;
}

// What lies in [from, to), cut into a part for each warp; in `shared.sums`.
DEVICE void sum_parts(Shared& shared, const Row& row, i32 from, i32 to, i32 part) {
    const i32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const i32 end = min(from + (warp + 1) * part, to);
    u64 sum = 0;
    for (i32 id = from + warp * part + lane; id < end; id += WARP) sum += kept_share(row, id);
    sum = lanes_total(sum);
    __syncthreads();  // nobody reads the last sums any more
    if (lane == 0) shared.sums[warp] = sum;
    __syncthreads();
}

// By the first warp: the first id in [from, to) whose cumulative share exceeds `target`.
DEVICE i32 find(const Row& row, i32 from, i32 to, u64 target) {
    const i32 lane = threadIdx.x % WARP;
    for (i32 at = from; at < to; at += WARP) {
        const u64 mine = at + lane < to ? kept_share(row, at + lane) : 0;
        const u64 upto = lanes_upto(mine);
        const u32 beyond = __ballot_sync(ALL_LANES, upto > target);
        if (beyond != 0) return at + __ffs(beyond) - 1;
        target -= __shfl_sync(ALL_LANES, upto, WARP - 1);
    }
    return to - 1;
}

DEVICE u64 total_of(const Shared& shared) {
    u64 total = 0;
    for (i32 w = 0; w < WARPS; ++w) total += shared.sums[w];
    return total;
}

DEVICE i32 draw(Shared& shared, const Row& row, double u) {
    i32 from = 0, to = row.vocab;
    i32 part = (to + WARPS - 1) / WARPS;
    sum_parts(shared, row, from, to, part);
    const u64 total = total_of(shared);
    u64 target = static_cast<u64>(u * static_cast<double>(total));
    target = target < total ? target : total - 1;
    while (true) {
        i32 w = 0;
        while (w < WARPS - 1 && shared.sums[w] <= target) target -= shared.sums[w++];
        from += w * part;
        to = min(from + part, to);
        if (to - from <= LAST_SPAN) break;
        part = (to - from + WARPS - 1) / WARPS;
        sum_parts(shared, row, from, to, part);
    }
    if (threadIdx.x < WARP) {
        const i32 id = find(row, from, to, target);
        if (threadIdx.x == 0) shared.found = id;
    }
    __syncthreads();
    return shared.found;
}

KERNEL(sample, Sample, THREADS, 1) {
    __shared__ Shared shared;
    const i64 at = blockIdx.x;
    Row row{p.logits + at * p.stride, p.vocab, 0.0f, p.exponent[at], p.min_p[at], 0};
    float normaliser;
    i32 token = summarize(shared, row, normaliser);
    if (row.exponent > 0.0f && token < row.vocab) {
        const u32 k = static_cast<u32>(min(p.top_k[at], row.vocab));
        if (k != 0) row.lowest = lowest_kept(shared, row, true, k);
        if (p.top_p[at] < 1.0f) {
            const float min_p = row.min_p;
            row.min_p = 0.0f;  // comes after
            sum_parts(shared, row, 0, row.vocab, (row.vocab + WARPS - 1) / WARPS);
            const double mass = static_cast<double>(p.top_p[at]) * static_cast<double>(total_of(shared));
            row.lowest = lowest_kept(shared, row, false, mass < 1.0 ? 1 : static_cast<u64>(ceil(mass)));
            row.min_p = min_p;
        }
        token = draw(shared, row, p.u[at]);
    }
    if (threadIdx.x == 0) {
        p.token[at] = token < row.vocab ? token : 0;
        p.normaliser[at] = normaliser;
    }
}
