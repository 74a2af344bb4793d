// The two products of attention of many rows: by AMX tiles of bfloat16, or by vectors, of pairs or as float32.
//
// The right side lies in tiles of 16 x 64 bytes: sixteen pairs of inputs, one after the other, of sixteen outputs each.
#pragma once

#include "../tile.h"
#include "attention.h"

#if defined(__AVX2__)
namespace tg::TG_ISA {

constexpr int64_t kTile = 512;  // bfloat16 numbers of a tile

#if defined(__AMX_BF16__)

// While there is one, products may be made.
struct Products {
  Products() { TileConfig().use(); }
  ~Products() { tile_release(); }
};

// Scores [32, padded keys] of a block of queries.
TG_INLINE void multiply_keys(const Attention &form, const Bf16 *query, const Bf16 *keys, int64_t padded, int64_t rows,
                             float *scores) {
  const int64_t chunks = form.padded_dim / 32, stride = form.padded_dim * 2;
  const bool both = rows > 16;
  for (int64_t key = 0; key < padded; key += 32, keys += 2 * chunks * kTile) {
    tile_zero<0>();
    tile_zero<1>();
    tile_zero<2>();
    tile_zero<3>();
    for (int64_t c = 0; c < chunks; c++) {
      tile_load<4>(query + c * 32, stride);
      tile_load<6>(keys + c * kTile, 64);
      tile_load<7>(keys + (chunks + c) * kTile, 64);
      tile_dot<false, 0, 4, 6>();
      tile_dot<false, 1, 4, 7>();
      if (both) {
        tile_load<5>(query + 16 * form.padded_dim + c * 32, stride);
        tile_dot<false, 2, 5, 6>();
        tile_dot<false, 3, 5, 7>();
      }
    }
    tile_store<0>(scores + key, kManyUnit * 4);
    tile_store<1>(scores + key + 16, kManyUnit * 4);
    if (both) {
      tile_store<2>(scores + 16 * kManyUnit + key, kManyUnit * 4);
      tile_store<3>(scores + 16 * kManyUnit + key + 16, kManyUnit * 4);
    }
  }
}

// out [32, padded_value] += weights [32, padded keys] * values.
TG_INLINE void multiply_values(const Attention &form, const Bf16 *weights, const Bf16 *values, int64_t padded, int64_t rows,
                               float *out) {
  const int64_t tiles = form.padded_value / 16, stride = form.padded_value * 4;
  const bool both = rows > 16;
  for (int64_t tile = 0; tile < tiles; tile += 2) {
    float *lower = out + 16 * form.padded_value + tile * 16;
    tile_load<0>(out + tile * 16, stride);
    tile_load<1>(out + tile * 16 + 16, stride);
    if (both) {
      tile_load<2>(lower, stride);
      tile_load<3>(lower + 16, stride);
    }
    for (int64_t key = 0; key < padded; key += 32) {
      const Bf16 *right = values + (key / 32 * tiles + tile) * kTile;
      tile_load<4>(weights + key, kManyUnit * 2);
      tile_load<6>(right, 64);
      tile_load<7>(right + kTile, 64);
      tile_dot<false, 0, 4, 6>();
      tile_dot<false, 1, 4, 7>();
      if (both) {
        tile_load<5>(weights + 16 * kManyUnit + key, kManyUnit * 2);
        tile_dot<false, 2, 5, 6>();
        tile_dot<false, 3, 5, 7>();
      }
    }
    tile_store<0>(out + tile * 16, stride);
    tile_store<1>(out + tile * 16 + 16, stride);
    if (both) {
      tile_store<2>(lower, stride);
      tile_store<3>(lower + 16, stride);
    }
  }
}

#else

struct Products {
  Products() {}
};

constexpr int kTogether = kLanes == 16 ? 8 : 6;  // rows whose sums are in registers
constexpr int kColumns = kLanes / 8;             // of tiles whose outputs these are: two vectors for each row
static_assert(kBlock % kTogether == 0);

// Vector v, 0 or 1, of a row of `kColumns` tiles side by side.
TG_INLINE const Bf16 *pairs_of(const Bf16 *const (&tiles)[kColumns], int64_t row, int v) {
  return tiles[v * kLanes / 16] + row * 32 + v * kLanes % 16 * 2;
}

#if defined(__AVX512BF16__)
// sums += pairs of numbers of each row, `stride` apart, times a row of the tiles.
TG_INLINE void add_pairs(Vec (&sums)[kTogether][2], const Bf16 *left, int64_t stride, const Bf16 *const (&tiles)[kColumns],
                         int64_t row) {
  const __m512bh right = (__m512bh)_mm512_load_si512(pairs_of(tiles, row, 0));
  const __m512bh beside = (__m512bh)_mm512_load_si512(pairs_of(tiles, row, 1));
#pragma GCC unroll 8
  for (int r = 0; r < kTogether; r++) {
    int32_t both;
    memcpy(&both, left + r * stride, sizeof both);
    const __m512bh x = (__m512bh)_mm512_set1_epi32(both);
    sums[r][0] = _mm512_dpbf16_ps(sums[r][0], x, right);
    sums[r][1] = _mm512_dpbf16_ps(sums[r][1], x, beside);
  }
}
#endif
TG_INLINE void add_pairs(Vec (&sums)[kTogether][2], const float *left, int64_t stride, const Bf16 *const (&tiles)[kColumns],
                         int64_t row) {
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) {
    Vec right[2];
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) {
      UVec both;
      memcpy(&both, pairs_of(tiles, row, v), sizeof both);
      right[v] = cast<Vec>(i == 0 ? both << 16 : both & 0xffff0000u);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kTogether; r++) add_products(sums[r][0], sums[r][1], left + r * stride + i, right[0], right[1]);
  }
}

// out [rows, 16 * kColumns] = or += left [rows, 32 * chunks] * columns of tiles; rows are whole times kTogether. next: from a tile
// to the one with the following inputs. A function of its own, so that the compiler finds registers for the sums in its loops alone.
template <bool kAdd, typename X>
__attribute__((noinline)) void multiply_tiles(const X *left, int64_t left_stride, const Bf16 *const (&right)[kColumns],
                                              int64_t next, int64_t chunks, int64_t rows, float *out, int64_t stride) {
  for (int64_t row = 0; row < rows; row += kTogether, left += kTogether * left_stride, out += kTogether * stride) {
    Vec sums[kTogether][2];
#pragma GCC unroll 8
    for (int r = 0; r < kTogether; r++) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; v++) sums[r][v] = kAdd ? load(out + r * stride + v * kLanes) : Vec{};
    }
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
      const Bf16 *tiles[kColumns];
      for (int c = 0; c < kColumns; c++) tiles[c] = right[c] + chunk * next;
      for (int64_t pair = 0; pair < 16; pair++) add_pairs(sums, left + chunk * 32 + pair * 2, left_stride, tiles, pair);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kTogether; r++) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; v++) store(out + r * stride + v * kLanes, sums[r][v]);
    }
  }
}

// `kColumns` columns of tiles, `apart` from one to the next.
struct Columns {
  const Bf16 *tiles[kColumns];

  TG_INLINE Columns(const Bf16 *first, int64_t apart) {
    for (int c = 0; c < kColumns; c++) tiles[c] = first + c * apart;
  }
};

// Scores [rows, padded keys] of a block of queries.
template <typename X>
TG_INLINE void multiply_keys(const Attention &form, const X *query, const Bf16 *keys, int64_t padded, int64_t rows,
                             float *scores) {
  const int64_t chunks = form.padded_dim / 32;
  for (int64_t key = 0; key < padded; key += 16 * kColumns, keys += kColumns * chunks * kTile) {
    multiply_tiles<false>(query, form.padded_dim, Columns(keys, chunks * kTile).tiles, kTile, chunks, round_up(rows, kTogether),
                          scores + key, kManyUnit);
  }
}

// out [rows, padded_value] += weights [rows, padded keys] * values.
template <typename X>
TG_INLINE void multiply_values(const Attention &form, const X *weights, const Bf16 *values, int64_t padded, int64_t rows,
                               float *out) {
  const int64_t tiles = form.padded_value / 16;
  for (int64_t tile = 0; tile < tiles; tile += kColumns) {
    multiply_tiles<true>(weights, kManyUnit, Columns(values + tile * kTile, kTile).tiles, tiles * kTile, padded / 32,
                         round_up(rows, kTogether), out + tile * 16, form.padded_value);
  }
}

#endif

}  // namespace tg::TG_ISA
#endif
