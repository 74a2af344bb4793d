// Which experts a token goes to, and how much of each it takes: a warp for each token.
#include "device.cuh"

using T = TG_T;
constexpr i32 THREADS = 128, WARPS = THREADS / WARP;
constexpr i32 EACH = TG_EACH;  // experts of a lane: lane, lane + 32, and so on
enum Score { SOFTMAX, SIGMOID, CHOSEN };
constexpr Score SCORE = TG_SCORE;

struct Route {
    const T* x;               // [tokens, experts], as the linear layer gives them
    const float* correction;  // [experts], added where experts are chosen, or null
    float* shares;            // [tokens, top]
    i64* chosen;              // [tokens, top], the best first
    i32 tokens, experts, top;
    i32 groups, top_groups, best_two;  // 1: all experts are in reach. best_two: a group's score is the sum of two
    i32 normalize;
    float scale;
};

constexpr float NEVER = -3e38f;  // of what is not there, or is no number

DEVICE float exponential(float x) { return exp2_fast(x * LOG2_E); }

// What is chosen: the largest of all lanes, the first of equals. `index`: of the lane's own.
DEVICE void find_largest(float& value, i32& index) {
#pragma unroll
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(ALL_LANES, value, step);
        const i32 theirs = __shfl_xor_sync(ALL_LANES, index, step);
        if (other > value || (other == value && theirs < index)) {
            value = other;
            index = theirs;
        }
    }
}

DEVICE void make_scores(const Route& p, i64 token, float (&scores)[EACH]) {
    const i32 lane = threadIdx.x % WARP;
    float highest = NEVER, sum = 0.0f;
#pragma unroll
    for (i32 i = 0; i < EACH; ++i) {
        const i32 expert = lane + i * WARP;
        scores[i] = expert < p.experts ? to_float(p.x[token * p.experts + expert]) : NEVER;
        highest = fmaxf(highest, scores[i]);
    }
    if constexpr (SCORE == SIGMOID) {
#pragma unroll
        for (i32 i = 0; i < EACH; ++i) scores[i] = 1.0f / (1.0f + exponential(-scores[i]));
    }
    if constexpr (SCORE == SOFTMAX) {
        highest = lanes_max(highest);
#pragma unroll
        for (i32 i = 0; i < EACH; ++i) {
            scores[i] = exponential(scores[i] - highest);
            sum += scores[i];
        }
        sum = lanes_sum(sum);
#pragma unroll
        for (i32 i = 0; i < EACH; ++i) scores[i] = scores[i] / sum;
    }
}

// Of the groups, a bit for each of the best. `wished` [experts] of the warp. A lane has a group.
DEVICE u32 best_groups(const Route& p, const float* wished) {
    const i32 lane = threadIdx.x % WARP, size = p.experts / p.groups;
    float first = NEVER, second = NEVER;
    for (i32 i = 0; lane < p.groups && i < size; ++i) {
        const float x = wished[lane * size + i];
        second = fmaxf(second, fminf(first, x));
        first = fmaxf(first, x);
    }
    const float own = p.best_two != 0 ? first + second : first;
    u32 best = 0;
    for (i32 i = 0; i < p.top_groups; ++i) {
        const bool there = lane < p.groups && (best >> lane & 1) == 0;
        float value = there ? own : NEVER;
        i32 index = there ? lane : static_cast<i32>(WARP) + lane;
        find_largest(value, index);
        if (index < static_cast<i32>(WARP)) best |= 1u << index;
    }
    return best;
}

// Grid: tokens by WARPS. Dynamic shared memory: experts numbers for each warp.
KERNEL(route, Route, THREADS) {
    SHARED_MEMORY(shared);
    const i32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const i64 token = static_cast<i64>(blockIdx.x) * WARPS + warp;
    if (token >= p.tokens) return;
    float* const at = reinterpret_cast<float*>(shared) + warp * p.experts;
    float scores[EACH], wished[EACH];
    make_scores(p, token, scores);
#pragma unroll
    for (i32 i = 0; i < EACH; ++i) {
        const i32 expert = lane + i * WARP;
        wished[i] = NEVER;
        if (expert >= p.experts) continue;
        wished[i] = p.correction == nullptr ? scores[i] : scores[i] + p.correction[expert];
        if (!(wished[i] >= NEVER)) wished[i] = NEVER;  // no number
        at[expert] = wished[i];
    }
    __syncwarp();
    const u32 groups = p.groups > 1 ? best_groups(p, at) : 1u;
    const i32 size = p.experts / p.groups;
    u32 open = 0;  // a bit for each of the lane's that is in reach and not chosen
#pragma unroll
    for (i32 i = 0; i < EACH; ++i) {
        const i32 expert = lane + i * WARP;
        if (expert < p.experts && (groups >> expert / size & 1) != 0) open |= 1u << i;
    }
    __syncwarp();
#pragma unroll
    for (i32 i = 0; i < EACH; ++i) {
        if (lane + i * static_cast<i32>(WARP) < p.experts) at[lane + i * WARP] = scores[i];
    }
    __syncwarp();
    float kept = 0.0f;  // the score of the lane-th choice
    for (i32 i = 0; i < p.top; ++i) {
        float value = NEVER;
        i32 index = p.experts + lane;
#pragma unroll
        for (i32 j = 0; j < EACH; ++j) {
            const bool better = wished[j] > value || index >= p.experts;
            if ((open >> j & 1) != 0 && better) {
                value = wished[j];
                index = lane + j * WARP;
            }
        }
        find_largest(value, index);
        const i32 expert = min(index, p.experts - 1);
        if (expert % static_cast<i32>(WARP) == lane) open &= ~(1u << expert / WARP);
        if (lane == i) {
            kept = at[expert];
            p.chosen[token * p.top + i] = expert;
        }
    }
    const bool mine = lane < p.top;
    if constexpr (SCORE == CHOSEN) {
        const float highest = lanes_max(mine ? kept : NEVER);
        kept = mine ? exponential(kept - highest) : 0.0f;
        kept /= lanes_sum(kept);
    }
    if (p.normalize != 0) kept /= lanes_sum(mine ? kept : 0.0f) + 1e-20f;
    if (mine) p.shares[token * p.top + lane] = kept * p.scale;
}
