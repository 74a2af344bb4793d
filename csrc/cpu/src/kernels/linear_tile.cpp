// Products by tiles of 16 rows of x and 16 outputs, for bfloat16 and integers.
//
// Up to 32 rows the weight is read once, several panels side by side, and the sums stay in tiles from the first input to the
// last. Of more rows, blocks of rows and inputs that fit the second-level cache are multiplied with parts of two panels that
// fit the first; where a block has not all inputs, the sums of some panels wait in memory for the next.
#include "../tile.h"
#include "linear.h"

namespace tg::TG_ISA {

#if defined(__AMX_TILE__)
namespace {

constexpr int64_t kTile = 1024;               // bytes
constexpr int64_t kBlockTiles = 1024;         // of x, in the second-level cache
constexpr int64_t kBlockRows = 16;            // tiles of rows that a block has where it cannot have all inputs
constexpr int64_t kPartTiles = 24;            // of a panel, in the first-level cache: whole records, if it is unpacked to them
constexpr int64_t kWaiting = 32;              // panels whose sums wait
constexpr int64_t kMostStreams = 4;
constexpr int64_t kUnpackedBytes = 2 * kPartTiles * kTile;

// How rows and inputs are walked.
struct Walk {
  int64_t tiles;    // of 16 rows
  int64_t block;    // of them at a time
  int64_t columns;  // tiles of inputs
  int64_t slab;     // of them at a time
  int64_t part;     // of those at a time
};

TG_INLINE bool unpacks(const tg_weight *weight) { return has_groups(weight) || weight->format == TG_WEIGHT_BF16_COMPACT; }

int64_t columns_of(const tg_weight *weight) { return layout_of(weight, kUnpackRows).row_bytes / 64; }

// The most tiles of rows that a block has: even, and above kBlockRows only with all inputs.
int64_t most_rows(int64_t columns) { return most(kBlockTiles / columns / 2 * 2, kBlockRows); }

Walk walk_of(const tg_weight *weight, int64_t rows) {
  Walk walk;
  walk.tiles = ceil_div(rows, 16);
  walk.columns = columns_of(weight);
  walk.block = walk.tiles;
  walk.slab = walk.part = walk.columns;
  if (walk.tiles <= 2 && !unpacks(weight)) return walk;
  walk.block = round_up(ceil_div(walk.tiles, ceil_div(walk.tiles, most_rows(walk.columns))), 2);
  if (walk.block * walk.columns > kBlockTiles) walk.slab = kBlockTiles / walk.block / kPartTiles * kPartTiles;
  walk.part = unpacks(weight) ? least(walk.slab, kPartTiles) : ceil_div(walk.slab, ceil_div(walk.slab, kPartTiles));
  return walk;
}

TG_INLINE void fetch_tile(const uint8_t *from) {
  constexpr int kAhead = 4096;
#pragma GCC unroll 16
  for (int line = 0; line < 16; line++) __builtin_prefetch(from + kAhead + line * 64, 0, 2);
}

// sums (kRowTiles x kStreams tiles, one after the other) = x * weight over `columns` tiles.
template <bool kInteger, int kRowTiles, int kStreams>
void multiply(const char *x, int64_t x_apart, const uint8_t *const (&weight)[kStreams], int64_t columns, char *sums) {
  static_assert(kRowTiles * kStreams <= 4);
  constexpr int kAll = kRowTiles * kStreams;
  tile_zero<0>();
  if constexpr (kAll > 1) tile_zero<1>();
  if constexpr (kAll > 2) tile_zero<2>(), tile_zero<3>();
  for (int64_t i = 0; i < columns; i++) {
    const int64_t at = i * kTile;
    tile_load<4>(x + at);
    if constexpr (kRowTiles == 2) tile_load<5>(x + x_apart + at);
    tile_load<6>(weight[0] + at);
    fetch_tile(weight[0] + at);
    tile_dot<kInteger, 0, 4, 6>();
    if constexpr (kRowTiles == 2) tile_dot<kInteger, kStreams, 5, 6>();
    if constexpr (kStreams > 1) {
      tile_load<7>(weight[1] + at);
      fetch_tile(weight[1] + at);
      tile_dot<kInteger, 1, 4, 7>();
      if constexpr (kRowTiles == 2) tile_dot<kInteger, kStreams + 1, 5, 7>();
    }
    if constexpr (kStreams > 2) {
      tile_load<6>(weight[2] + at);
      fetch_tile(weight[2] + at);
      tile_dot<kInteger, 2, 4, 6>();
      tile_load<7>(weight[3] + at);
      fetch_tile(weight[3] + at);
      tile_dot<kInteger, 3, 4, 7>();
    }
  }
  tile_store<0>(sums);
  if constexpr (kAll > 1) tile_store<1>(sums + kTile);
  if constexpr (kAll > 2) tile_store<2>(sums + 2 * kTile), tile_store<3>(sums + 3 * kTile);
}

// Where the sums of a row lie, of its first panel: those of two row tiles follow each other, with a tile for each panel.
template <int kStreams>
TG_INLINE const char *sums_of(const char *sums, int64_t row) {
  return sums + row / 16 * kStreams * kTile + row % 16 * 64;
}

// What is asked for while others are multiplied: so many lines of each stream with each tile of inputs.
template <int kStreams>
struct Ahead {
  const uint8_t *from[kStreams], *end[kStreams];
  int64_t lines;
  // What will be written: a line of each row, so many with each tile of inputs.
  char *to = nullptr;
  int64_t stride = 0, rows = 0, left = 0;

  TG_INLINE void ask() {
    for (int64_t row = 0; row < rows && left > 0; row++, left--) {
      __builtin_prefetch(to, 1, 3);
      to += stride;
    }
    for (int64_t line = 0; line < lines; line++) {
#pragma GCC unroll 2
      for (int s = 0; s < kStreams; s++) {
        if (from[s] < end[s]) __builtin_prefetch(from[s], 0, 2);
        from[s] += 64;
      }
    }
  }
};

// Writes a row's outputs of kStreams panels that lie `apart`; sums: its first panel's, the others a tile behind each other.
template <bool kInteger, int kStreams>
TG_INLINE void finish_row(const Linear &job, int64_t row, int64_t panel, int64_t apart, const char *sums) {
  const tg_weight *weight = job.weight;
  Vec value[kStreams];
#pragma GCC unroll 4
  for (int s = 0; s < kStreams; s++) {
    const char *from = sums + s * kTile;
    if constexpr (kInteger) {
      const __m512i dot = _mm512_add_epi32(_mm512_loadu_si512(from), _mm512_set1_epi32(job.x.sums[row]));
      value[s] = _mm512_cvtepi32_ps(dot) * (load(weight->scales + (panel + s * apart) * kPanel) * job.x.scales[row]);
    } else {
      value[s] = load(reinterpret_cast<const float *>(from));
    }
  }
  if (kStreams == 2 && apart == 1 && job.y_bf16 && job.bias == nullptr && (panel + 2) * kPanel <= weight->outs) {
    Bf16 *y = reinterpret_cast<Bf16 *>(job.y + row * job.y_stride) + panel * kPanel;
    if (job.add) value[0] += load(y), value[kStreams - 1] += load(y + kPanel);
    _mm512_storeu_si512(y, (__m512i)_mm512_cvtne2ps_pbh(value[kStreams - 1], value[0]));
    return;
  }
#pragma GCC unroll 4
  for (int s = 0; s < kStreams; s++) emit(job, row, panel + s * apart, &value[s]);
}

// The outputs of up to two row tiles from `tile` on.
template <bool kInteger, int kStreams>
void finish(const Linear &job, int64_t tile, int64_t tiles, int64_t panel, int64_t apart, const char *sums) {
  for (int64_t row = tile * 16; row < least((tile + tiles) * 16, job.rows); row++) {
    finish_row<kInteger, kStreams>(job, row, panel, apart, sums_of<kStreams>(sums, row - tile * 16));
  }
}

// Outputs that are written while the tiles behind them are multiplied: so many rows with each tile of inputs.
template <bool kInteger, int kStreams>
struct Rest {
  const Linear &job;
  const char *sums = nullptr;
  int64_t tile = 0, panel = 0, row = 0, end = 0, rows = 0;

  // The sums of up to two row tiles, which stay as they are until all is written. columns: tiles of inputs of what follows.
  TG_INLINE void take(int64_t first, int64_t tiles, int64_t of, const char *from, int64_t columns) {
    tile = first, panel = of, sums = from, row = first * 16, end = least((first + tiles) * 16, job.rows);
    rows = ceil_div(32, columns);
  }
  TG_INLINE void some(int64_t most) {
    for (; most > 0 && row < end; most--, row++) {
      finish_row<kInteger, kStreams>(job, row, panel, 1, sums_of<kStreams>(sums, row - tile * 16));
    }
  }
  TG_INLINE void all() { some(end - row); }
};

// Of many rows, sums = or +=: those of x pass through the first cache, in which the weight stays.
template <bool kInteger, int kRowTiles, int kStreams>
void pass(const char *x, int64_t x_apart, const uint8_t *const (&weight)[kStreams], Ahead<kStreams> &ahead,
          Rest<kInteger, kStreams> &rest, int64_t columns, bool first, char *sums) {
  static_assert(kRowTiles <= 2 && kStreams <= 2);
  if (first) {
    tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  } else {
    tile_load<0>(sums);
    if constexpr (kStreams == 2) tile_load<1>(sums + kTile);
    if constexpr (kRowTiles == 2) tile_load<2>(sums + kStreams * kTile);
    if constexpr (kRowTiles == 2 && kStreams == 2) tile_load<3>(sums + 3 * kTile);
  }
  for (int64_t at = 0; at < columns * kTile; at += kTile) {
    tile_load_once<4>(x + at);
    if constexpr (kRowTiles == 2) tile_load_once<5>(x + x_apart + at);
    tile_load<6>(weight[0] + at);
    tile_dot<kInteger, 0, 4, 6>();
    if constexpr (kRowTiles == 2) tile_dot<kInteger, 2, 5, 6>();
    if constexpr (kStreams == 2) {
      tile_load<7>(weight[1] + at);
      tile_dot<kInteger, 1, 4, 7>();
      if constexpr (kRowTiles == 2) tile_dot<kInteger, 3, 5, 7>();
    }
    ahead.ask();
    rest.some(rest.rows);
  }
  rest.all();
  tile_store<0>(sums);
  if constexpr (kStreams == 2) tile_store<1>(sums + kTile);
  if constexpr (kRowTiles == 2) tile_store<2>(sums + kStreams * kTile);
  if constexpr (kRowTiles == 2 && kStreams == 2) tile_store<3>(sums + 3 * kTile);
}

// bfloat16 and int8, up to 32 rows: all row tiles times kStreams panels that lie `apart`.
template <bool kInteger, int kStreams>
void whole(const Linear &job, const Walk &walk, int64_t panel, int64_t apart, char *sums) {
  const uint8_t *from[kStreams];
  for (int s = 0; s < kStreams; s++) from[s] = job.weight->values + (panel + s * apart) * job.weight->panel_bytes;
  if constexpr (kStreams <= 2) {
    if (walk.tiles == 2) {
      multiply<kInteger, 2, kStreams>(job.x.values, 16 * job.x.row_bytes, from, walk.columns, sums);
      return finish<kInteger, kStreams>(job, 0, 2, panel, apart, sums);
    }
  }
  multiply<kInteger, 1, kStreams>(job.x.values, 0, from, walk.columns, sums);
  finish<kInteger, kStreams>(job, 0, 1, panel, apart, sums);
}

// Of more, or of a weight that is unpacked: [begin, end) row tiles times kStreams panels side by side, over the slab of inputs
// from `first` on. unpacked: room for parts of the panels.
template <bool kInteger, int kStreams>
void block(const Linear &job, const Walk &walk, int64_t begin, int64_t end, int64_t first, int64_t panel, char *sums,
           char *unpacked, Rest<kInteger, kStreams> &rest) {
  const int64_t x_apart = 16 * job.x.row_bytes, last = least(first + walk.slab, walk.columns);
  const auto weight = [&](int64_t at, int64_t column) {
    return job.weight->values + at * job.weight->panel_bytes + column * kTile;
  };
  for (int64_t column = first; column < last; column += walk.part) {
    const int64_t part = least(walk.part, last - column), next = column + part;
    const uint8_t *from[kStreams];
    Ahead<kStreams> ahead;  // of the next part or panels; behind the weight's end it does no harm
    ahead.lines = unpacks(job.weight) ? 0 : ceil_div(16, ceil_div(end - begin, 2));
    for (int s = 0; s < kStreams; s++) {
      if (unpacks(job.weight)) {
        char *to = unpacked + s * kPartTiles * kTile;
        unpack_panel(job.weight, panel + s, column * 32, part * 32, to);
        from[s] = reinterpret_cast<const uint8_t *>(to);
        ahead.from[s] = ahead.end[s] = nullptr;
        continue;
      }
      from[s] = weight(panel + s, column);
      ahead.from[s] = next < last ? weight(panel + s, next) : weight(panel + kStreams + s, first);
      ahead.end[s] = ahead.from[s] + part * kTile;
    }
    char *to = sums;
    for (int64_t tile = begin; tile < end; tile += 2) {
      const char *x = job.x.values + tile * x_apart + column * kTile;
      const int64_t tiles = least(2, end - tile);
      if (next == walk.columns && !job.past) {
        ahead.to = job.y + tile * 16 * job.y_stride + panel * kPanel * (job.y_bf16 ? 2 : 4);
        ahead.stride = job.y_stride;
        ahead.left = least(tiles * 16, job.rows - tile * 16);
        ahead.rows = ceil_div(ahead.left, part);
      }
      if (tiles == 2) {
        pass<kInteger, 2, kStreams>(x, x_apart, from, ahead, rest, part, column == 0, to);
      } else {
        pass<kInteger, 1, kStreams>(x, 0, from, ahead, rest, part, column == 0, to);
      }
      if (next == walk.columns) rest.take(tile, tiles, panel, to, walk.part);
      if (walk.part < walk.columns) {
        to += tiles * kStreams * kTile;
      } else {
        to = to == sums ? sums + 2 * kStreams * kTile : sums;
      }
    }
  }
}

// The panels [panel, last), slab after slab.
template <bool kInteger>
void slabs(const Linear &job, const Walk &walk, int64_t begin, int64_t end, int64_t panel, int64_t last, char *scratch) {
  Rest<kInteger, 2> rest = {job};
  char *unpacked = scratch, *begins = scratch + (unpacks(job.weight) ? kUnpackedBytes : 0);
  for (int64_t column = 0; column < walk.columns; column += walk.slab) {
    char *sums = begins;
    for (int64_t at = panel; at < last; at += 2) {
      if (at + 2 <= last) {
        block<kInteger, 2>(job, walk, begin, end, column, at, sums, unpacked, rest);
      } else {
        Rest<kInteger, 1> last_rest = {job};
        rest.all();
        block<kInteger, 1>(job, walk, begin, end, column, at, sums, unpacked, last_rest);
        last_rest.all();
      }
      if (walk.slab < walk.columns) sums += 2 * walk.block * kTile;
    }
    rest.all();
  }
}

template <int kStreams>
void panels_at(const Linear &job, const Walk &walk, int64_t panel, int64_t apart, char *scratch) {
  if (job.weight->format == TG_WEIGHT_INT8) {
    whole<true, kStreams>(job, walk, panel, apart, scratch);
  } else {
    whole<false, kStreams>(job, walk, panel, apart, scratch);
  }
}

// As many of the panels [panel, last) as kStreams side by side take.
template <int kStreams>
int64_t streams_by(const Linear &job, const Walk &walk, int64_t panel, int64_t last, char *scratch) {
  const int64_t apart = (last - panel) / kStreams;
  for (int64_t i = 0; i < apart; i++) panels_at<kStreams>(job, walk, panel + i, apart, scratch);
  return panel + apart * kStreams;
}

}  // namespace

int64_t tile_scratch(const tg_weight *weight, int64_t rows) {
  // A step may have fewer rows than these, and be walked in larger blocks for it.
  const int64_t columns = columns_of(weight), block = least(most_rows(columns), round_up(ceil_div(rows, 16), 2));
  const bool slabs = columns * kBlockRows > kBlockTiles;
  return block * (slabs ? kWaiting : kMostStreams) * kTile + (unpacks(weight) ? kUnpackedBytes : 0);
}

void multiply_tiles(const Linear &job, char *scratch) {
  TileConfig().use();
  const Walk walk = walk_of(job.weight, job.rows - job.first);
  const int64_t tiles = ceil_div(job.rows, 16);
  for (int64_t begin = job.first / 16; begin < tiles; begin += walk.block) {
    const int64_t end = least(begin + walk.block, tiles);
    int64_t panel = job.panels.begin;
    const int64_t last = job.panels.end;
    if (walk.tiles <= 2 && !unpacks(job.weight)) {
      if (walk.tiles == 1) panel = streams_by<4>(job, walk, panel, last, scratch);
      panel = streams_by<2>(job, walk, panel, last, scratch);
      streams_by<1>(job, walk, panel, last, scratch);
      continue;
    }
    const int64_t most_panels = walk.slab < walk.columns ? kWaiting : last - panel;
    for (; panel < last; panel += most_panels) {
      const int64_t some = least(panel + most_panels, last);
      if (job.weight->format == TG_WEIGHT_INT8) {
        slabs<true>(job, walk, begin, end, panel, some, scratch);
      } else {
        slabs<false>(job, walk, begin, end, panel, some, scratch);
      }
    }
  }
  tile_release();
}
#else
int64_t tile_scratch(const tg_weight *, int64_t) { return 0; }
void multiply_tiles(const Linear &, char *) {}
#endif

}  // namespace tg::TG_ISA
