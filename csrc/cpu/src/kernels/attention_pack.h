// What the two kinds of attention by tiles share: how numbers of the cache become tiles.
#pragma once

#include "attention_multiply.h"

#if defined(__AVX512F__)
namespace tg::TG_ISA {

// The transpose of 16 x 16 numbers of 32 bits.
TG_INLINE void transpose(__m512i *r) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// Tiles [keys / 32][padded_value / 16]; keys from `count` on are zeros.
// before() is called between them.
template <typename F>
TG_INLINE void pack_values(const Attention &form, const Bf16 *const *values, int64_t count, Bf16 *to, const F &before) {
  alignas(64) uint16_t low[32], high[32];
  for (int i = 0; i < 16; i++) {
    low[2 * i] = i, low[2 * i + 1] = i + 32;
    high[2 * i] = i + 16, high[2 * i + 1] = i + 48;
  }
  const __m512i of_low = _mm512_load_si512(low), of_high = _mm512_load_si512(high);
  const __m512i zero = _mm512_setzero_si512();
  for (int64_t key = 0; key < count; key += 32) {
    for (int64_t d = 0; d < form.padded_value; d += 32) {
      for (int64_t i = 0; i < 16; i++) {
        before();
        const int64_t at = key + 2 * i;
        const __m512i a = at < count ? _mm512_loadu_si512(values[at] + d) : zero;
        const __m512i b = at + 1 < count ? _mm512_loadu_si512(values[at + 1] + d) : zero;
        _mm512_store_si512(to + i * 32, _mm512_permutex2var_epi16(a, of_low, b));
        _mm512_store_si512(to + kTile + i * 32, _mm512_permutex2var_epi16(a, of_high, b));
      }
      to += 2 * kTile;
    }
  }
}

}  // namespace tg::TG_ISA
#endif
