// The tile registers of AMX, in assembler of our own: GCC 12 says of `_tile_loadconfig` that it reads 8 of its 64 bytes, and
// of `_tile_loadd` that it reads no memory, so that stores before them may be dropped or come too late.
#pragma once

#include "kernel.h"

#if defined(__AMX_TILE__)
namespace tg::TG_ISA {

// Tiles 0 to 3 hold sums, 4 and 5 rows of x, 6 and 7 units of the weight; 5 may be either.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  // Products over `bytes` bytes of a row of x, 32 or 64.
  explicit TileConfig(int64_t bytes) {
    for (int tile = 0; tile < 8; tile++) {
      const bool of_x = tile == 4 || tile == 5, of_weight = tile > 5;
      row_bytes[tile] = static_cast<uint16_t>(of_x ? bytes : 64);
      rows[tile] = static_cast<uint8_t>(of_weight ? bytes / 4 : 16);
    }
  }
  TG_INLINE void use() const { asm volatile("ldtilecfg (%0)" ::"r"(this) : "memory"); }
};

TG_INLINE void tile_release() { asm volatile("tilerelease" ::: "memory"); }

template <int kTile>
TG_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTile>
TG_INLINE void tile_load(const void *from, int64_t stride = 64) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
TG_INLINE void tile_store(void *to) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(int64_t{64}), "i"(kTile) : "memory");
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

}  // namespace tg::TG_ISA
#endif
