// Sorts by group, stably: where each entry goes, whose row stands there, and where groups end. By counting, in one block: no
// entry is compared with another, nobody's place depends on who comes first, and the host is not asked.
#include "device.cuh"

constexpr i32 THREADS = TG_THREADS, WARPS = THREADS / WARP;

struct GroupRows {
    const i64* chosen;  // [rows, share] groups
    i32* sources;       // [rows * share] by place: the row of the entry
    i32* places;        // [rows, share]
    i32* ends;          // [groups]
    i32 entries, share, groups, reserved;
};

// Each warp has a part of the entries, one behind the other. `counts` [WARPS, groups]: of each warp, and later where its
// next entry of a group goes.
DEVICE void count_entries(const GroupRows& p, i32 from, i32 to, u32* counts) {
    for (i32 at = from + threadIdx.x % WARP; at < to; at += WARP) atomicAdd(counts + p.chosen[at], 1u);
}

// Of each group: how many entries it has, and where each warp's begin among them.
DEVICE void add_warps(const GroupRows& p, u32* counts, u32* totals) {
    for (i32 group = threadIdx.x; group < p.groups; group += THREADS) {
        u32 sum = 0;
        for (i32 warp = 0; warp < WARPS; ++warp) {
            const u32 own = counts[warp * p.groups + group];
            counts[warp * p.groups + group] = sum;
            sum += own;
        }
        totals[group] = sum;
    }
}

// By one warp: totals become where groups begin.
DEVICE void add_groups(const GroupRows& p, u32* totals) {
    const i32 lane = threadIdx.x;
    u32 before = 0;
    for (i32 first = 0; first < p.groups; first += WARP) {
        const i32 group = first + lane;
        const u32 own = group < p.groups ? totals[group] : 0;
        u32 until = own;
#pragma unroll
        for (i32 step = 1; step < static_cast<i32>(WARP); step *= 2) {
            const u32 more = __shfl_sync(ALL_LANES, until, (lane - step) & (WARP - 1));
            if (lane >= step) until += more;
        }
        if (group < p.groups) {
            totals[group] = before + until - own;
            p.ends[group] = before + until;
        }
        before += __shfl_sync(ALL_LANES, until, WARP - 1);
    }
}

DEVICE void place_entries(const GroupRows& p, i32 from, i32 to, u32* next, const u32* begins) {
    const i32 lane = threadIdx.x % WARP;
    for (i32 first = from; first < to; first += WARP) {
        const i32 at = first + lane;
        const u32 group = at < to ? static_cast<u32>(p.chosen[at]) : ~0u;
        const u32 same = __match_any_sync(ALL_LANES, group);
        const u32 before = __popc(same & ((1u << lane) - 1));
        u32 place = 0;
        if (at < to) {
            place = begins[group] + next[group] + before;
            p.places[at] = place;
            p.sources[place] = at / p.share;
        }
        __syncwarp();
        if (at < to && before == 0) next[group] += __popc(same);
        __syncwarp();
    }
}

// Grid: one block. Dynamic shared memory: WARPS + 1 times groups numbers.
KERNEL(group_rows, GroupRows, THREADS) {
    SHARED_MEMORY(shared);
    u32* const counts = reinterpret_cast<u32*>(shared);
    u32* const totals = counts + WARPS * p.groups;
    const i32 warp = threadIdx.x / WARP;
    const i32 part = (p.entries + THREADS - 1) / THREADS * WARP;
    const i32 from = min(warp * part, p.entries), to = min(from + part, p.entries);
    for (i32 i = threadIdx.x; i < WARPS * p.groups; i += THREADS) counts[i] = 0;
    __syncthreads();
    count_entries(p, from, to, counts + warp * p.groups);
    __syncthreads();
    add_warps(p, counts, totals);
    __syncthreads();
    if (warp == 0) add_groups(p, totals);
    __syncthreads();
    place_entries(p, from, to, counts + warp * p.groups, totals);
}
