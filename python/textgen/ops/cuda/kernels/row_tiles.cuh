// Rows that are sorted by group, in tiles that have rows of one group each.
//
// Where groups end the host does not know: each block finds its tile on the device. The grid is for the most tiles that so
// many rows in so many groups can make, and the blocks behind the last end at once.
#pragma once

#include "device.cuh"

struct RowTile {
    i32 group;
    i32 row, rows;  // the first, and how many
};

// The `index`-th tile of HEIGHT rows, of all groups. ends: the row each group ends before. SEARCHED: groups for each lane of
// a warp. False: there are not so many. Warps do the same, each on its own.
template <i32 SEARCHED, i32 HEIGHT>
DEVICE bool find_row_tile(const i32* end, i32 groups, i32 index, RowTile& tile) {
    const i32 lane = threadIdx.x % WARP, first = lane * SEARCHED;
    i32 ends[SEARCHED], tiles = 0;
    const i32 begin = first == 0 || first > groups ? 0 : end[first - 1];
#pragma unroll
    for (i32 i = 0; i < SEARCHED; ++i) ends[i] = first + i < groups ? end[first + i] : -1;
    i32 before = begin;
#pragma unroll
    for (i32 i = 0; i < SEARCHED; ++i) {
        if (ends[i] < 0) ends[i] = before;
        tiles += (ends[i] - before + HEIGHT - 1) / HEIGHT;
        before = ends[i];
    }
    i32 until = tiles;  // of this lane's groups and all before
#pragma unroll
    for (i32 step = 1; step < static_cast<i32>(WARP); step *= 2) {
        const i32 more = __shfl_sync(ALL_LANES, until, (lane - step) & (WARP - 1));
        if (lane >= step) until += more;
    }
    const u32 behind = __ballot_sync(ALL_LANES, until > index);
    if (behind == 0) return false;
    i32 left = index - (until - tiles);
    RowTile own = {0, 0, 0};
    before = begin;
#pragma unroll
    for (i32 i = 0; i < SEARCHED; ++i) {
        const i32 count = (ends[i] - before + HEIGHT - 1) / HEIGHT;
        if (left >= 0 && left < count) {
            own.group = first + i;
            own.row = before + left * HEIGHT;
            own.rows = min(HEIGHT, ends[i] - own.row);
        }
        left -= count;
        before = ends[i];
    }
    const u32 from = __ffs(behind) - 1;
    tile.group = __shfl_sync(ALL_LANES, own.group, from);
    tile.row = __shfl_sync(ALL_LANES, own.row, from);
    tile.rows = __shfl_sync(ALL_LANES, own.rows, from);
    return true;
}
