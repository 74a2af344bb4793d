// A tile of a product x @ weight.T: its constants, and the stages of shared memory that its factors go through.
//
// A stage has DEPTH numbers of each of ROWS rows of x, then of each of COLUMNS rows of the weight. STAGES of them take
// turns: while one is multiplied, the copies of the next are under way.
//
// Each number of the result is summed up in one order, that of the inputs, whatever the tile's shape and whoever shares it:
// a row has the same bits in every tile (grouped_linear_matrices.cuh and grouped_linear_floats.cuh say which order).
#pragma once

#include "row_tiles.cuh"

using T = TG_T;
constexpr i32 ROWS = TG_ROWS;        // of the tile
constexpr i32 COLUMNS = TG_COLUMNS;  // of the tile: rows of the weight
constexpr i32 DEPTH = TG_DEPTH;      // numbers of a row in a stage
constexpr i32 STAGES = TG_STAGES;
constexpr i32 DOWN = TG_DOWN;        // warps below one another
constexpr i32 ACROSS = TG_ACROSS;    // warps side by side
constexpr bool TAIL = TG_TAIL;       // whether the last stage is not full

constexpr i32 THREADS = 32 * DOWN * ACROSS;
constexpr i32 WIDTH = PER_QUAD<T>;
constexpr i32 UNITS = DEPTH / WIDTH;  // of 16 bytes in a row of a stage
constexpr i32 LINES = THREADS / UNITS;  // rows that the threads copy at once
constexpr i32 STAGE = (ROWS + COLUMNS) * DEPTH;
static_assert(UNITS == 4 || UNITS == 8, "what the order of units is made for");
static_assert(THREADS % UNITS == 0 && LINES % 8 == 0, "a thread's rows have one order of units");
static_assert(ROWS % LINES == 0 && COLUMNS % LINES == 0, "each thread copies as much");
static_assert(STAGES >= 2, "one is multiplied while another comes");

// What the units of a row are exchanged by, so that eight rows lie in different banks at every unit.
DEVICE i32 exchanged(i32 row) { return UNITS == 8 ? row % 8 : row / 2 % 4; }

// Where a unit of a row begins, from the beginning of the stage's rows or columns.
DEVICE i32 place(i32 row, i32 unit) { return (row * UNITS + (unit ^ exchanged(row))) * WIDTH; }

struct Tile : RowTile {
    i32 column, columns;  // of the outputs: the first, and how many
};
