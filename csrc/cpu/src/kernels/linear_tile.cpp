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
constexpr int64_t kPartTiles = 16;            // of a panel, in the first-level cache
constexpr int64_t kWaiting = 32;              // panels whose sums wait
constexpr int64_t kMostStreams = 4;

// How rows and inputs are walked.
struct Walk {
  int64_t tiles;    // of 16 rows
  int64_t block;    // of them at a time
  int64_t columns;  // tiles of inputs
  int64_t slab;     // of them at a time
  int64_t part;     // of those at a time
};

int64_t columns_of(const tg_weight *weight) { return layout_of(weight, 1).row_bytes / 64; }

// The most tiles of rows that a block has: even, and above kBlockRows only with all inputs.
int64_t most_rows(int64_t columns) { return most(kBlockTiles / columns / 2 * 2, kBlockRows); }

Walk walk_of(const tg_weight *weight, int64_t rows) {
  Walk walk;
  walk.tiles = ceil_div(rows, 16);
  walk.columns = columns_of(weight);
  walk.block = walk.tiles;
  walk.slab = walk.part = walk.columns;
  if (walk.tiles <= 2) return walk;
  walk.block = round_up(ceil_div(walk.tiles, ceil_div(walk.tiles, most_rows(walk.columns))), 2);
  walk.part = kPartTiles;
  if (walk.block * walk.columns > kBlockTiles) walk.slab = kBlockTiles / walk.block / kPartTiles * kPartTiles;
  return walk;
}

template <int kAhead>
TG_INLINE void fetch_tile(const uint8_t *from) {
#pragma GCC unroll 16
  for (int line = 0; line < 16; line++) __builtin_prefetch(from + kAhead + line * 64, 0, 2);
}

// sums (kRowTiles x kStreams tiles, one after the other) = or += x * weight over `columns` tiles.
template <bool kInteger, int kRowTiles, int kStreams, bool kFetch>
void multiply(const char *x, int64_t x_apart, const uint8_t *const (&weight)[kStreams], int64_t columns, bool first, char *sums) {
  static_assert(kRowTiles * kStreams <= 4);
  constexpr int kAll = kRowTiles * kStreams;
  if (first) {
    tile_zero<0>();
    if constexpr (kAll > 1) tile_zero<1>();
    if constexpr (kAll > 2) tile_zero<2>(), tile_zero<3>();
  } else {
    tile_load<0>(sums);
    if constexpr (kAll > 1) tile_load<1>(sums + kTile);
    if constexpr (kAll > 2) tile_load<2>(sums + 2 * kTile), tile_load<3>(sums + 3 * kTile);
  }
  constexpr int kAhead = 4096;
  for (int64_t i = 0; i < columns; i++) {
    const int64_t at = i * kTile;
    tile_load<4>(x + at);
    if constexpr (kRowTiles == 2) tile_load<5>(x + x_apart + at);
    tile_load<6>(weight[0] + at);
    if constexpr (kFetch) fetch_tile<kAhead>(weight[0] + at);
    tile_dot<kInteger, 0, 4, 6>();
    if constexpr (kRowTiles == 2) tile_dot<kInteger, kStreams, 5, 6>();
    if constexpr (kStreams > 1) {
      tile_load<7>(weight[1] + at);
      if constexpr (kFetch) fetch_tile<kAhead>(weight[1] + at);
      tile_dot<kInteger, 1, 4, 7>();
      if constexpr (kRowTiles == 2) tile_dot<kInteger, kStreams + 1, 5, 7>();
    }
    if constexpr (kStreams > 2) {
      tile_load<6>(weight[2] + at);
      if constexpr (kFetch) fetch_tile<kAhead>(weight[2] + at);
      tile_dot<kInteger, 2, 4, 6>();
      tile_load<7>(weight[3] + at);
      if constexpr (kFetch) fetch_tile<kAhead>(weight[3] + at);
      tile_dot<kInteger, 3, 4, 7>();
    }
  }
  tile_store<0>(sums);
  if constexpr (kAll > 1) tile_store<1>(sums + kTile);
  if constexpr (kAll > 2) tile_store<2>(sums + 2 * kTile), tile_store<3>(sums + 3 * kTile);
}

// The sums of a block's row tile and stream: of two row tiles at a time those of one stream follow each other.
template <int kStreams>
TG_INLINE char *sums_at(char *sums, int64_t tile) {
  return sums + tile * kStreams * kTile;
}

// bfloat16 and int8: [begin, end) row tiles times kStreams panels that lie `apart`, over the slab of inputs from `column` on.
template <bool kInteger, int kStreams>
void whole(const Linear &job, const Walk &walk, int64_t begin, int64_t end, int64_t column, int64_t panel, int64_t apart,
           char *sums) {
  const tg_weight *weight = job.weight;
  const int64_t x_apart = 16 * job.x.row_bytes, last = least(column + walk.slab, walk.columns);
  for (; column < last; column += walk.part) {
    const int64_t part = least(walk.part, last - column);
    const uint8_t *from[kStreams];
    for (int s = 0; s < kStreams; s++) from[s] = weight->values + (panel + s * apart) * weight->panel_bytes + column * kTile;
    int64_t tile = begin;
    if constexpr (kStreams <= 2) {
      for (; tile + 2 <= end; tile += 2) {
        const char *x = job.x.values + tile * x_apart + column * kTile;
        char *to = sums_at<kStreams>(sums, tile - begin);
        if (tile == begin) {
          multiply<kInteger, 2, kStreams, true>(x, x_apart, from, part, column == 0, to);
        } else {
          multiply<kInteger, 2, kStreams, false>(x, x_apart, from, part, column == 0, to);
        }
      }
    }
    for (; tile < end; tile++) {
      const char *x = job.x.values + tile * x_apart + column * kTile;
      multiply<kInteger, 1, kStreams, true>(x, 0, from, part, column == 0, sums_at<kStreams>(sums, tile - begin));
    }
  }
  if (last < walk.columns) return;
  for (int64_t row = begin * 16; row < least(end * 16, job.rows); row++) {
    for (int s = 0; s < kStreams; s++) {
      const int64_t at = panel + s * apart;
      const char *from = sums_at<kStreams>(sums, row / 16 - begin) + s * kTile + row % 16 * 64;
      Vec value;
      if constexpr (kInteger) {
        const __m512i dot = _mm512_add_epi32(_mm512_loadu_si512(from), _mm512_set1_epi32(job.x.sums[row]));
        value = _mm512_cvtepi32_ps(dot) * (load(weight->scales + at * kPanel) * job.x.scales[row]);
      } else {
        value = load(reinterpret_cast<const float *>(from));
      }
      emit(job, row, at, &value);
    }
  }
}

// Eight inputs a byte pair, into tiles of a byte each.
TG_INLINE void unpack(const uint8_t *from, int64_t bytes, char *to) {
  const __m512i low = _mm512_set1_epi8(15);
  for (int64_t i = 0; i < bytes; i += 64) {
    const __m512i both = _mm512_loadu_si512(from + i);
    _mm512_store_si512(to + 2 * i, _mm512_and_si512(both, low));
    _mm512_store_si512(to + 2 * i + 64, _mm512_and_si512(_mm512_srli_epi16(both, 4), low));
  }
}

// Integers in groups: the tiles' sums of each group are scaled and added up in float32.
template <int kStreams>
void grouped(const Linear &job, int64_t begin, int64_t end, int64_t panel, int64_t apart, char *scratch) {
  const tg_weight *weight = job.weight;
  const bool nibbles = weight->format == TG_WEIGHT_INT4_GROUPS;
  const int64_t x_apart = 16 * job.x.row_bytes, group_bytes = weight->group * kPanel;
  char *dots = scratch, *units = dots + 4 * kTile;
  float *sums = reinterpret_cast<float *>(units + kMostStreams * 2 * kTile);
  memset(sums, 0, (end - begin) * kStreams * kTile);
  for (int64_t g = 0; g < weight->groups; g++) {
    const uint8_t *from[kStreams];
    Vec scales[kStreams];
    for (int s = 0; s < kStreams; s++) {
      const uint8_t *values = weight->values + (panel + s * apart) * weight->panel_bytes;
      if (nibbles) {
        char *to = units + s * 2 * kTile;
        unpack(values + g * group_bytes / 2, group_bytes / 2, to);
        from[s] = reinterpret_cast<const uint8_t *>(to);
      } else {
        from[s] = values + g * group_bytes;
      }
      load_scales(weight, panel + s * apart, g, &scales[s]);
    }
    const int64_t columns = weight->group <= 64 ? 1 : weight->group / 64;
    const int64_t offset = g * weight->group / 64 * kTile + g * weight->group % 64;
    for (int64_t tile = begin; tile < end;) {
      const char *x = job.x.values + tile * x_apart + offset;
      int64_t tiles = 1;
      if (kStreams <= 2 && tile + 2 <= end) {
        if constexpr (kStreams <= 2) multiply<true, 2, kStreams, false>(x, x_apart, from, columns, true, dots);
        tiles = 2;
      } else {
        multiply<true, 1, kStreams, false>(x, 0, from, columns, true, dots);
      }
      for (int64_t t = 0; t < tiles; t++, tile++) {
        const int64_t rows = least(16, job.rows - tile * 16);
        float *to = sums + (tile - begin) * kStreams * 256;
        const char *dot = dots + t * kStreams * kTile;
        for (int64_t r = 0; r < rows; r++) {
          const int64_t index = (tile * 16 + r) * weight->groups + g;
          const __m512i x_sum = _mm512_set1_epi32(job.x.sums[index]);
          const Vec x_scale = splat(job.x.scales[index]);
#pragma GCC unroll 4
          for (int s = 0; s < kStreams; s++) {
            const __m512i whole = _mm512_add_epi32(_mm512_loadu_si512(dot + s * kTile + r * 64), x_sum);
            float *sum = to + s * 256 + r * 16;
            store(sum, fma(_mm512_cvtepi32_ps(whole), scales[s] * x_scale, load(sum)));
          }
        }
      }
    }
  }
  for (int64_t row = begin * 16; row < least(end * 16, job.rows); row++) {
    for (int s = 0; s < kStreams; s++) {
      const Vec value = load(sums + (row / 16 - begin) * kStreams * 256 + s * 256 + row % 16 * 16);
      emit(job, row, panel + s * apart, &value);
    }
  }
}

template <int kStreams>
void panels_at(const Linear &job, const Walk &walk, int64_t begin, int64_t end, int64_t column, int64_t panel, int64_t apart,
               char *scratch) {
  if (has_groups(job.weight)) {
    grouped<kStreams>(job, begin, end, panel, apart, scratch);
  } else if (job.weight->format == TG_WEIGHT_INT8) {
    whole<true, kStreams>(job, walk, begin, end, column, panel, apart, scratch);
  } else {
    whole<false, kStreams>(job, walk, begin, end, column, panel, apart, scratch);
  }
}

// As many of the panels [panel, last) as kStreams side by side take.
template <int kStreams>
int64_t streams_by(const Linear &job, const Walk &walk, int64_t begin, int64_t end, int64_t panel, int64_t last, char *scratch) {
  const int64_t apart = (last - panel) / kStreams;
  for (int64_t i = 0; i < apart; i++) panels_at<kStreams>(job, walk, begin, end, 0, panel + i, apart, scratch);
  return panel + apart * kStreams;
}

// The panels [panel, last), at most kWaiting, slab after slab.
void slabs(const Linear &job, const Walk &walk, int64_t begin, int64_t end, int64_t panel, int64_t last, char *scratch) {
  const int64_t apart = (last - panel) / 2;
  for (int64_t column = 0; column < walk.columns; column += walk.slab) {
    char *sums = scratch;
    for (int64_t i = 0; i < apart; i++, sums += 2 * walk.block * kTile) {
      panels_at<2>(job, walk, begin, end, column, panel + i, apart, sums);
    }
    if (panel + 2 * apart < last) panels_at<1>(job, walk, begin, end, column, last - 1, 1, sums);
  }
}

}  // namespace

int64_t tile_scratch(const tg_weight *weight, int64_t rows) {
  // A step may have fewer rows than these, and be walked in larger blocks for it.
  const int64_t columns = columns_of(weight), block = least(most_rows(columns), round_up(ceil_div(rows, 16), 2));
  const bool slabs = columns * kBlockRows > kBlockTiles && !has_groups(weight);
  return block * (slabs ? kWaiting : kMostStreams) * kTile + (4 + kMostStreams * 2) * kTile;
}

void multiply_tiles(const Linear &job, char *scratch) {
  const TileConfig config(job.weight->group == 32 ? 32 : 64);
  config.use();
  const Walk walk = walk_of(job.weight, job.rows);
  for (int64_t begin = 0; begin < walk.tiles; begin += walk.block) {
    const int64_t end = least(begin + walk.block, walk.tiles);
    int64_t panel = job.panels.begin;
    const int64_t last = job.panels.end;
    if (walk.slab < walk.columns && !has_groups(job.weight)) {
      for (; panel < last; panel += kWaiting) slabs(job, walk, begin, end, panel, least(panel + kWaiting, last), scratch);
      continue;
    }
    if (walk.tiles == 1) panel = streams_by<4>(job, walk, begin, end, panel, last, scratch);
    panel = streams_by<2>(job, walk, begin, end, panel, last, scratch);
    streams_by<1>(job, walk, begin, end, panel, last, scratch);
  }
  tile_release();
}
#else
int64_t tile_scratch(const tg_weight *, int64_t) { return 0; }
void multiply_tiles(const Linear &, char *) {}
#endif

}  // namespace tg::TG_ISA
