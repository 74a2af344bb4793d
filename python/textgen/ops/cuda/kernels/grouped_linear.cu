// Groups of rows, each times a matrix of its own: out = x @ weights[group].T + biases[group].
//
// A block has one tile of the result, and finds on the device which group's it is (row_tiles.cuh).
// Tiles of few rows are bound by the memory: each weight is read once, several stages under way.
#if TG_MATRICES
#include "grouped_linear_matrices.cuh"
#else
#include "grouped_linear_floats.cuh"
#endif

constexpr i32 SEARCHED = TG_SEARCHED;  // groups for each lane of a warp
constexpr i32 ORDER = 8;               // tiles of rows that go through the columns together: their rows stay in the L2 cache

struct GroupedLinear {
    const T* x;          // [rows of x, inputs], x_stride apart
    const T* weights;    // [groups, outputs, inputs]
    const T* biases;     // [groups, outputs], or null
    T* out;              // [rows, outputs]
    const i32* ends;     // [groups], the row each group ends before, or null: one group of all rows
    const i32* sources;  // [rows], the row of x that each is, or null: the same
    i64 x_stride;
    i32 rows, inputs, outputs, groups;
    i32 row_tiles, column_tiles;  // of the grid
};

DEVICE bool find_tile(const GroupedLinear& p, Tile& tile) {
    const i32 together = ORDER * p.column_tiles, block = blockIdx.x;
    const i32 first = block / together * ORDER, height = min(ORDER, p.row_tiles - first);
    tile.column = block % together / height * COLUMNS;
    tile.columns = min(COLUMNS, p.outputs - tile.column);
    const i32 index = first + block % together % height;
    if (p.ends != nullptr) return find_row_tile<SEARCHED, ROWS>(p.ends, p.groups, index, tile);
    tile.group = 0;
    tile.row = index * ROWS;
    tile.rows = min(ROWS, p.rows - tile.row);
    return true;
}

// What a thread copies of each stage: a unit of each LINES-th row. Of rows and columns that the tile has not nothing comes
// out: those of x are what was there, and those of the weight the last one again.
struct Copies {
    i64 x[ROWS / LINES];   // where its rows of x begin
    const T* weight;       // its first column's
    i32 line, unit, rows;  // rows from its first on
    i32 last;              // the last of the tile's columns
};

DEVICE Copies copies_of(const GroupedLinear& p, const Tile& tile) {
    Copies copies;
    copies.line = threadIdx.x / UNITS;
    copies.unit = threadIdx.x % UNITS;
    copies.rows = tile.rows - copies.line;
    copies.last = tile.columns - 1;
#pragma unroll
    for (i32 i = 0; i < ROWS / LINES; ++i) {
        const i32 row = tile.row + min(copies.line + i * LINES, tile.rows - 1);
        copies.x[i] = (p.sources == nullptr ? row : p.sources[row]) * p.x_stride;
    }
    copies.weight = p.weights + (static_cast<i64>(tile.group) * p.outputs + tile.column) * p.inputs;
    return copies;
}

DEVICE void copy_unit(T* to, const T* from, bool there) {
    if (there) {
        copy_async(to, from);
    } else {
        store_quad(to, Quad{});
    }
}

DEVICE void fetch(const GroupedLinear& p, const Copies& copies, i32 step, T* stage) {
    const i32 input = step * DEPTH + copies.unit * WIDTH;
    const bool there = !TAIL || input < p.inputs;
    T* const to = stage + place(copies.line, copies.unit);
#pragma unroll
    for (i32 i = 0; i < ROWS / LINES; ++i) {
        if (i * LINES < copies.rows) copy_unit(to + i * LINES * DEPTH, p.x + copies.x[i] + input, there);
    }
#pragma unroll
    for (i32 i = 0; i < COLUMNS / LINES; ++i) {
        const i32 column = min(copies.line + i * LINES, copies.last);
        copy_unit(to + (ROWS + i * LINES) * DEPTH, copies.weight + static_cast<i64>(column) * p.inputs + input, there);
    }
}

// Grid: row tiles times column tiles. Dynamic shared memory: STAGES times STAGE numbers.
KERNEL(grouped_linear, GroupedLinear, THREADS, 2) {
    SHARED_MEMORY(shared);
    T* const stages = reinterpret_cast<T*>(shared);
    Tile tile;
    if (!find_tile(p, tile)) return;
    const Copies copies = copies_of(p, tile);
    const i32 steps = (p.inputs + DEPTH - 1) / DEPTH;
#pragma unroll
    for (i32 step = 0; step < STAGES - 1; ++step) {
        if (step < steps) fetch(p, copies, step, stages + step * STAGE);
        copy_commit();
    }
    Sums sums = {};
    i32 now = 0, next = STAGES - 1;
    for (i32 step = 0; step < steps; ++step) {
        copy_wait<STAGES - 2>();
        __syncthreads();  // what all have copied is there, and nobody reads the stage before it any more
        if (step + STAGES - 1 < steps) fetch(p, copies, step + STAGES - 1, stages + next * STAGE);
        copy_commit();
        multiply(stages + now * STAGE, sums);
        now = now + 1 == STAGES ? 0 : now + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }
    const T* bias = p.biases == nullptr ? nullptr : p.biases + static_cast<i64>(tile.group) * p.outputs + tile.column;
    T* const out = p.out + static_cast<i64>(tile.row) * p.outputs + tile.column;
    finish(sums, tile, bias, out, p.outputs, stages);
}
