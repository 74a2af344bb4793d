// The tile registers of AMX, in assembler of our own: GCC 12 says of `_tile_loadconfig` that it reads 8 of its 64 bytes, and
// of `_tile_loadd` that it reads no memory, so that stores before them may be dropped or come too late.
#pragma once

#include <string.h>

#include "kernel.h"

#if defined(__AMX_TILE__)
namespace tg::TG_ISA {

// Tiles 0 to 3 hold sums, 4 and 5 rows of x, 6 and 7 units of the weight; 5 may be either.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  TileConfig() {
    for (int tile = 0; tile < 8; tile++) row_bytes[tile] = 64, rows[tile] = 16;
  }
  TG_INLINE void use() const;
};

#if defined(TG_EMULATED_TILES)
// The registers in memory, so that what is written for them runs where there are none: `make -C csrc/cpu TILES=emulated`.
struct Tiles {
  uint16_t row_bytes[8];
  uint8_t rows[8], data[8][16][64];
};
inline thread_local Tiles tiles_of_thread;

void TileConfig::use() const {
  memcpy(tiles_of_thread.row_bytes, row_bytes, sizeof tiles_of_thread.row_bytes);
  memcpy(tiles_of_thread.rows, rows, sizeof tiles_of_thread.rows);
}
TG_INLINE void tile_release() {}
template <int kTile>
TG_INLINE void tile_zero() {
  memset(tiles_of_thread.data[kTile], 0, sizeof tiles_of_thread.data[kTile]);
}
template <int kTile>
TG_INLINE void tile_load(const void *from, int64_t stride = 64) {
  tile_zero<kTile>();
  Tiles &tiles = tiles_of_thread;
  for (int row = 0; row < tiles.rows[kTile]; row++) {
    memcpy(tiles.data[kTile][row], static_cast<const char *>(from) + row * stride, tiles.row_bytes[kTile]);
  }
}
template <int kTile>
TG_INLINE void tile_load_once(const void *from, int64_t stride = 64) {
  tile_load<kTile>(from, stride);
}
template <int kTile>
TG_INLINE void tile_store(void *to, int64_t stride = 64) {
  const Tiles &tiles = tiles_of_thread;
  for (int row = 0; row < tiles.rows[kTile]; row++) {
    memcpy(static_cast<char *>(to) + row * stride, tiles.data[kTile][row], tiles.row_bytes[kTile]);
  }
}
template <bool kInteger, int kSums, int kX, int kWeight>
TG_INLINE void tile_dot() {
  Tiles &tiles = tiles_of_thread;
  for (int row = 0; row < tiles.rows[kX]; row++) {
    for (int column = 0; column < tiles.row_bytes[kSums] / 4; column++) {
      int32_t whole;
      float sum;
      uint8_t *at = tiles.data[kSums][row] + column * 4;
      memcpy(&whole, at, 4);
      memcpy(&sum, at, 4);
      for (int unit = 0; unit < tiles.rows[kWeight]; unit++) {
        const uint8_t *x = tiles.data[kX][row] + unit * 4, *weight = tiles.data[kWeight][unit] + column * 4;
        if constexpr (kInteger) {
          for (int i = 0; i < 4; i++) whole += static_cast<int8_t>(x[i]) * weight[i];
        } else {
          for (int i = 0; i < 2; i++) {
            float left = 0, right = 0;  // a bfloat16 is the upper half of one
            memcpy(reinterpret_cast<char *>(&left) + 2, x + 2 * i, 2);
            memcpy(reinterpret_cast<char *>(&right) + 2, weight + 2 * i, 2);
            sum += left * right;
          }
        }
      }
      if constexpr (kInteger) {
        memcpy(at, &whole, 4);
      } else {
        memcpy(at, &sum, 4);
      }
    }
  }
}
#else
void TileConfig::use() const { asm volatile("ldtilecfg (%0)" ::"r"(this) : "memory"); }
TG_INLINE void tile_release() { asm volatile("tilerelease" ::: "memory"); }

template <int kTile>
TG_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTile>
TG_INLINE void tile_load(const void *from, int64_t stride = 64) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}
// Of what need not stay in the first cache.
template <int kTile>
TG_INLINE void tile_load_once(const void *from, int64_t stride = 64) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
TG_INLINE void tile_store(void *to, int64_t stride = 64) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
}
// sums += x * weight; integers: x signed, weight unsigned, sums of 32 bits; else bfloat16 and float32.
template <bool kInteger, int kSums, int kX, int kWeight>
TG_INLINE void tile_dot() {
  if constexpr (kInteger) {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kX), "i"(kWeight));
  } else {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kX), "i"(kWeight));
  }
}
#endif

}  // namespace tg::TG_ISA
#endif
