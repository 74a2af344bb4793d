// Products by tiles of 16 rows of x and 16 outputs, for bfloat16 and integers.
//
// Up to 32 rows the weight is read once, several panels side by side, and the sums stay in tiles from the first input to the
// last. Of more rows, blocks of rows and inputs that fit the second-level cache are multiplied with parts of two panels that
// fit the first; where a block has not all inputs, the sums of some panels wait in memory for the next.
#include "linear_tile_weight.h"

namespace tg::TG_ISA {

#if defined(__AMX_TILE__)
namespace {

constexpr int64_t kBlockTiles = 1024;         // of x, in the second-level cache
constexpr int64_t kBlockRows = 16;            // tiles of rows that a block has where it cannot have all inputs
constexpr int64_t kWaiting = 32;              // panels whose sums wait
constexpr int64_t kMostStreams = 4;
static_assert(kMostStreams * kRing * kTile <= kUnpackedBytes);

// How rows and inputs are walked.
struct Walk {
  int64_t tiles;    // of 16 rows
  int64_t block;    // of them at a time
  int64_t columns;  // tiles of inputs
  int64_t slab;     // of them at a time
  int64_t part;     // of those at a time
};

// Whether the weight is read once for so many tiles of rows, all sums in tiles.
TG_INLINE bool in_one_pass(const tg_weight *weight, int64_t tiles) { return tiles <= 2 && !has_groups(weight); }

int64_t columns_of(const tg_weight *weight) { return layout_of(weight, kUnpackRows).row_bytes / 64; }

// The most tiles of rows that a block has: even, and above kBlockRows only with all inputs.
int64_t most_rows(int64_t columns) { return most(kBlockTiles / columns / 2 * 2, kBlockRows); }

Walk walk_of(const tg_weight *weight, int64_t rows) {
  Walk walk;
  walk.tiles = ceil_div(rows, 16);
  walk.columns = columns_of(weight);
  walk.block = walk.tiles;
  walk.slab = walk.part = walk.columns;
  if (in_one_pass(weight, walk.tiles)) return walk;
  walk.block = round_up(ceil_div(walk.tiles, ceil_div(walk.tiles, most_rows(walk.columns))), 2);
  if (walk.block * walk.columns > kBlockTiles) walk.slab = kBlockTiles / walk.block / kRecordTiles * kRecordTiles;
  walk.part = has_groups(weight) ? least(walk.slab, kRecordTiles) : ceil_div(walk.slab, ceil_div(walk.slab, kPartTiles));
  return walk;
}

// sums (kRowTiles x kStreams tiles, one after the other) = x * the next `columns` of the weight.
template <bool kInteger, int kRowTiles, int kStreams, typename Weight>
void multiply(const char *x, int64_t x_apart, Weight &weight, int64_t columns, char *sums) {
  static_assert(kRowTiles * kStreams <= 4);
  constexpr int kAll = kRowTiles * kStreams;
  tile_zero<0>();
  if constexpr (kAll > 1) tile_zero<1>();
  if constexpr (kAll > 2) tile_zero<2>(), tile_zero<3>();
  for (const char *end = x + columns * kTile; x < end; x += kTile) {
    weight.begin();
    tile_load<4>(x);
    if constexpr (kRowTiles == 2) tile_load<5>(x + x_apart);
    tile_load<6>(weight.template take<0>());
    tile_dot<kInteger, 0, 4, 6>();
    if constexpr (kRowTiles == 2) tile_dot<kInteger, kStreams, 5, 6>();
    if constexpr (kStreams > 1) {
      tile_load<7>(weight.template take<1>());
      tile_dot<kInteger, 1, 4, 7>();
      if constexpr (kRowTiles == 2) tile_dot<kInteger, kStreams + 1, 5, 7>();
    }
    if constexpr (kStreams > 2) {
      tile_load<6>(weight.template take<2>());
      tile_dot<kInteger, 2, 4, 6>();
      tile_load<7>(weight.template take<3>());
      tile_dot<kInteger, 3, 4, 7>();
    }
    weight.end();
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

// Lines that will be written, asked for while what goes there is multiplied: so many of them with each column.
struct Lines {
  char *to = nullptr;
  int64_t stride = 0, rows = 0, left = 0;

  TG_INLINE void some() {
    for (int64_t row = 0; row < rows && left > 0; row++, left--) {
      __builtin_prefetch(to, 1, 3);
      to += stride;
    }
  }
};

// A row's 16 numbers from its sums. scales: of the panel.
template <bool kInteger>
TG_INLINE Vec number_of(const char *sums, int32_t x_sum, float x_scale, Vec scales) {
  if constexpr (!kInteger) return load(reinterpret_cast<const float *>(sums));
  const __m512i dot = _mm512_add_epi32(_mm512_loadu_si512(sums), _mm512_set1_epi32(x_sum));
  return _mm512_cvtepi32_ps(dot) * (scales * x_scale);
}

// As `emit`, rows [row, last): what is the same for all is looked up once. number(row): a row's.
template <typename Y, typename F>
TG_INLINE void emit_rows(const Linear &job, int64_t row, int64_t last, int64_t panel, const F &number) {
  const int64_t at = panel * kPanel, stride = job.y_stride;
  const int lanes = static_cast<int>(least(job.weight->outs - at, kPanel));
  const bool add = job.add, has_bias = job.bias != nullptr, past = job.past && sizeof(Y) == 4 && lanes == kPanel;
  const Vec bias = has_bias ? load_lanes(job.bias + at, lanes) : Vec{};
  for (char *to = job.y + row * stride + at * static_cast<int64_t>(sizeof(Y)); row < last; row++, to += stride) {
    Y *y = reinterpret_cast<Y *>(to);
    Vec sum = number(row);
    if (has_bias) sum += bias;
    if (add) sum += load_lanes(y, lanes);
    if (past) {
      _mm512_stream_ps(reinterpret_cast<float *>(to), sum);
    } else {
      store_lanes(y, sum, lanes);
    }
  }
}

// The outputs of rows [row, last) of kStreams panels that lie `apart`. sums: of the first row of a tile, `first`.
template <bool kInteger, int kStreams>
TG_INLINE void finish(const Linear &job, int64_t first, int64_t row, int64_t last, int64_t panel, int64_t apart, const char *sums) {
  Vec scales[kStreams] = {};
  for (int s = 0; kInteger && s < kStreams; s++) scales[s] = load(job.weight->scales + (panel + s * apart) * kPanel);
  const int32_t *x_sums = job.x.sums;
  const float *x_scales = job.x.scales;
  const auto number = [&](int64_t at, int s) {
    const char *from = sums_of<kStreams>(sums, at - first) + s * kTile;
    return kInteger ? number_of<kInteger>(from, x_sums[at], x_scales[at], scales[s]) : number_of<kInteger>(from, 0, 0, Vec{});
  };
  if (kStreams == 2 && apart == 1 && job.y_bf16 && job.bias == nullptr && (panel + 2) * kPanel <= job.weight->outs) {
    const int64_t stride = job.y_stride;
    const bool add = job.add;
    for (char *to = job.y + row * stride + panel * kPanel * 2; row < last; row++, to += stride) {
      Bf16 *y = reinterpret_cast<Bf16 *>(to);
      Vec low = number(row, 0), high = number(row, kStreams - 1);
      if (add) low += load(y), high += load(y + kPanel);
      _mm512_storeu_si512(y, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
    return;
  }
  for (int s = 0; s < kStreams; s++) {
    const auto of_panel = [&](int64_t at) { return number(at, s); };
    if (job.y_bf16) {
      emit_rows<Bf16>(job, row, last, panel + s * apart, of_panel);
    } else {
      emit_rows<float>(job, row, last, panel + s * apart, of_panel);
    }
  }
}

// Outputs that are written while the tiles behind them are multiplied: so many rows with each tile of inputs.
template <bool kInteger, int kStreams>
struct Rest {
  const Linear &job;
  const char *sums = nullptr;
  int64_t first = 0, panel = 0, row = 0, end = 0, rows = 0;

  // The sums of up to two row tiles, which stay as they are until all is written. columns: tiles of inputs of what follows.
  TG_INLINE void take(int64_t tile, int64_t tiles, int64_t of, const char *from, int64_t columns) {
    panel = of, sums = from, row = first = tile * 16, end = least((tile + tiles) * 16, job.rows);
    rows = ceil_div(32, columns);
  }
  TG_INLINE void some() { some(rows); }
  TG_INLINE void all() { some(end - row); }

 private:
  TG_INLINE void some(int64_t most) {
    const int64_t last = least(row + most, end);
    if (row < last) finish<kInteger, kStreams>(job, first, row, last, panel, 1, sums);
    row = last;
  }
};

// Of many rows, sums = or +=: those of x pass through the first cache, in which the weight stays. What is done meanwhile is told by
// copies, which the compiler need not look up again behind each instruction on tiles.
template <bool kInteger, int kRowTiles, int kStreams, typename Parts>
void pass(const char *x, int64_t x_apart, Parts &parts, Lines &all_lines, Rest<kInteger, kStreams> &all_rest, int64_t columns, bool first,
          char *sums) {
  static_assert(kRowTiles <= 2 && kStreams <= 2);
  if (first) {
    tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>();
  } else {
    tile_load<0>(sums);
    if constexpr (kStreams == 2) tile_load<1>(sums + kTile);
    if constexpr (kRowTiles == 2) tile_load<2>(sums + kStreams * kTile);
    if constexpr (kRowTiles == 2 && kStreams == 2) tile_load<3>(sums + 3 * kTile);
  }
  const uint8_t *weight = parts.at(0), *beside = parts.at(kStreams - 1);
  Asking asking = parts.asking;
  Lines lines = all_lines;
  Rest<kInteger, kStreams> rest = all_rest;
  for (const char *end = x + columns * kTile; x < end; x += kTile, weight += kTile, beside += kTile) {
    tile_load_once<4>(x);
    if constexpr (kRowTiles == 2) tile_load_once<5>(x + x_apart);
    tile_load<6>(weight);
    tile_dot<kInteger, 0, 4, 6>();
    if constexpr (kRowTiles == 2) tile_dot<kInteger, 2, 5, 6>();
    if constexpr (kStreams == 2) {
      tile_load<7>(beside);
      tile_dot<kInteger, 1, 4, 7>();
      if constexpr (kRowTiles == 2) tile_dot<kInteger, 3, 5, 7>();
    }
    asking.some();
    lines.some();
    rest.some();
  }
  rest.all();
  tile_store<0>(sums);
  if constexpr (kStreams == 2) tile_store<1>(sums + kTile);
  if constexpr (kRowTiles == 2) tile_store<2>(sums + kStreams * kTile);
  if constexpr (kRowTiles == 2 && kStreams == 2) tile_store<3>(sums + 3 * kTile);
  parts.asking = asking;
  all_lines.left = lines.left, all_lines.to = lines.to;
  all_rest.row = rest.row;
}

// Of more: [begin, end) row tiles times kStreams panels side by side, over the slab of inputs from `first` on. end: of the panels.
template <bool kInteger, int kStreams, typename Parts>
void block(const Linear &job, const Walk &walk, int64_t begin, int64_t end, int64_t first, int64_t panel, int64_t last_panel, char *sums,
           Parts &parts, Rest<kInteger, kStreams> &rest) {
  const int64_t x_apart = 16 * job.x.row_bytes, last = least(first + walk.slab, walk.columns);
  const auto part_at = [&](int64_t at, int64_t column) {
    return Part{at, least(last_panel - at, 2), column, least(walk.part, last - column)};
  };
  for (int64_t column = first; column < last; column += walk.part) {
    const Part part = part_at(panel, column);
    const int64_t next = column + part.columns;
    parts.take(part);
    parts.follow(next < last ? part_at(panel, next) : part_at(panel + kStreams, first), ceil_div(end - begin, 2));
    Lines lines;
    char *to = sums;
    for (int64_t tile = begin; tile < end; tile += 2) {
      const char *x = job.x.values + tile * x_apart + column * kTile;
      const int64_t tiles = least(2, end - tile);
      if (next == walk.columns && !job.past) {
        lines.to = job.y + tile * 16 * job.y_stride + panel * kPanel * (job.y_bf16 ? 2 : 4);
        lines.stride = job.y_stride;
        lines.left = least(tiles * 16, job.rows - tile * 16);
        lines.rows = ceil_div(lines.left, part.columns);
      }
      if (tiles == 2) {
        pass<kInteger, 2, kStreams>(x, x_apart, parts, lines, rest, part.columns, column == 0, to);
      } else {
        pass<kInteger, 1, kStreams>(x, 0, parts, lines, rest, part.columns, column == 0, to);
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
template <bool kInteger, typename Parts>
void slabs(const Linear &job, const Walk &walk, int64_t begin, int64_t end, int64_t panel, int64_t last, char *scratch) {
  Rest<kInteger, 2> rest = {job};
  Parts parts(job, scratch);
  char *begins = scratch + (unpacks(job.weight) ? kUnpackedBytes : 0);
  for (int64_t column = 0; column < walk.columns; column += walk.slab) {
    char *sums = begins;
    for (int64_t at = panel; at < last; at += 2) {
      if (at + 2 <= last) {
        block<kInteger, 2>(job, walk, begin, end, column, at, last, sums, parts, rest);
      } else {
        Rest<kInteger, 1> last_rest = {job};
        rest.all();
        block<kInteger, 1>(job, walk, begin, end, column, at, last, sums, parts, last_rest);
        last_rest.all();
      }
      if (walk.slab < walk.columns) sums += 2 * walk.block * kTile;
    }
    rest.all();
  }
}

// In one pass: all row tiles times the panels [panel, panel + panels) and those that lie `apart` from each of them.
template <bool kInteger, int kStreams, typename Weight>
void whole(const Linear &job, const Walk &walk, int64_t panel, int64_t panels, int64_t apart, char *scratch) {
  char *sums = scratch, *ring = scratch + kMostStreams * kTile;
  Weight weight(job.weight, panel, apart, panels, walk.columns, ring);
  for (int64_t at = panel; at < panel + panels; at++) {
    if (kStreams <= 2 && walk.tiles == 2) {
      if constexpr (kStreams <= 2) multiply<kInteger, 2, kStreams>(job.x.values, 16 * job.x.row_bytes, weight, walk.columns, sums);
    } else {
      multiply<kInteger, 1, kStreams>(job.x.values, 0, weight, walk.columns, sums);
    }
    finish<kInteger, kStreams>(job, 0, 0, job.rows, at, apart, sums);
  }
}

// As many of the panels [panel, last) as kStreams side by side take.
template <int kStreams>
int64_t streams_by(const Linear &job, const Walk &walk, int64_t panel, int64_t last, char *scratch) {
  const int64_t apart = (last - panel) / kStreams;
  if (apart == 0) return panel;
  if (job.weight->format == TG_WEIGHT_INT8) {
    whole<true, kStreams, Packed<kStreams>>(job, walk, panel, apart, apart, scratch);
  } else if (is_compact_form(job.weight)) {
    whole<false, kStreams, Unpacked<kStreams>>(job, walk, panel, apart, apart, scratch);
  } else {
    whole<false, kStreams, Packed<kStreams>>(job, walk, panel, apart, apart, scratch);
  }
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
    if (in_one_pass(job.weight, walk.tiles)) {
      if (walk.tiles == 1) panel = streams_by<4>(job, walk, panel, last, scratch);
      panel = streams_by<2>(job, walk, panel, last, scratch);
      streams_by<1>(job, walk, panel, last, scratch);
      continue;
    }
    const int64_t most_panels = walk.slab < walk.columns ? kWaiting : last - panel;
    for (; panel < last; panel += most_panels) {
      const int64_t some = least(panel + most_panels, last);
      if (job.weight->format == TG_WEIGHT_INT8) {
        slabs<true, PackedParts>(job, walk, begin, end, panel, some, scratch);
      } else if (unpacks(job.weight)) {
        slabs<false, UnpackedParts>(job, walk, begin, end, panel, some, scratch);
      } else {
        slabs<false, PackedParts>(job, walk, begin, end, panel, some, scratch);
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
