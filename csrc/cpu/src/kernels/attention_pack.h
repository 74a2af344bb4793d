// What the two kinds of attention by tiles share: how numbers of the cache become tiles.
#pragma once

#include "attention_multiply.h"

#if defined(__AVX2__)
namespace tg::TG_ISA {

#if defined(__AVX512F__)
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

// A tile: pairs of numbers of 16 keys, turned. row(i): where the numbers of key i are.
template <typename F>
TG_INLINE void pack_tile(const F &row, Bf16 *to) {
  __m512i tile[16];
#pragma GCC unroll 16
  for (int64_t i = 0; i < 16; i++) tile[i] = _mm512_loadu_si512(row(i));
  transpose(tile);
#pragma GCC unroll 16
  for (int64_t i = 0; i < 16; i++) _mm512_store_si512(to + i * 32, tile[i]);
}

// Pairs of numbers of two rows, 32 of each: a row of two tiles.
struct Interleaved {
  __m512i low, high;

  TG_INLINE Interleaved() {
    alignas(64) uint16_t places[2][32];
    for (int i = 0; i < 16; i++) {
      places[0][2 * i] = i, places[0][2 * i + 1] = i + 32;
      places[1][2 * i] = i + 16, places[1][2 * i + 1] = i + 48;
    }
    low = _mm512_load_si512(places[0]), high = _mm512_load_si512(places[1]);
  }
  TG_INLINE void operator()(const Bf16 *a, const Bf16 *b, Bf16 *to) const {
    const __m512i zero = _mm512_setzero_si512();
    const __m512i first = a == nullptr ? zero : _mm512_loadu_si512(a), second = b == nullptr ? zero : _mm512_loadu_si512(b);
    _mm512_store_si512(to, _mm512_permutex2var_epi16(first, low, second));
    _mm512_store_si512(to + kTile, _mm512_permutex2var_epi16(first, high, second));
  }
};
#else
// The transpose of 8 x 8 numbers of 32 bits.
TG_INLINE void transpose(__m256i *r) {
  __m256i t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) {
    r[4 * i] = _mm256_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm256_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm256_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm256_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    t[i] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x20);
    t[i + 4] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x31);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) r[i] = t[i];
}

template <typename F>
TG_INLINE void pack_tile(const F &row, Bf16 *to) {
  for (int64_t key = 0; key < 16; key += 8) {
    for (int64_t pair = 0; pair < 16; pair += 8) {
      __m256i part[8];
#pragma GCC unroll 8
      for (int64_t i = 0; i < 8; i++) part[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(row(key + i) + pair * 2));
      transpose(part);
#pragma GCC unroll 8
      for (int64_t i = 0; i < 8; i++) _mm256_store_si256(reinterpret_cast<__m256i *>(to + (pair + i) * 32 + key * 2), part[i]);
    }
  }
}

struct Interleaved {
  TG_INLINE void operator()(const Bf16 *a, const Bf16 *b, Bf16 *to) const {
    for (int64_t tile = 0; tile < 2; tile++) {
      const __m256i first = part(a, tile), second = part(b, tile);
      const __m256i low = _mm256_unpacklo_epi16(first, second), high = _mm256_unpackhi_epi16(first, second);
      __m256i *at = reinterpret_cast<__m256i *>(to + tile * kTile);
      _mm256_store_si256(at, _mm256_permute2x128_si256(low, high, 0x20));
      _mm256_store_si256(at + 1, _mm256_permute2x128_si256(low, high, 0x31));
    }
  }
  TG_INLINE static __m256i part(const Bf16 *row, int64_t tile) {
    return row == nullptr ? _mm256_setzero_si256() : _mm256_loadu_si256(reinterpret_cast<const __m256i *>(row + tile * 16));
  }
};
#endif

// Tiles [keys / 32][padded_value / 16]; keys from `count` on are zeros.
TG_INLINE void pack_values(const Attention &form, const Bf16 *const *values, int64_t count, Bf16 *to) {
  const Interleaved interleave;
  for (int64_t key = 0; key < count; key += 32) {
    for (int64_t d = 0; d < form.padded_value; d += 32, to += 2 * kTile) {
      for (int64_t i = 0; i < 16; i++) {
        const int64_t at = key + 2 * i;
        interleave(at < count ? values[at] + d : nullptr, at + 1 < count ? values[at + 1] + d : nullptr, to + i * 32);
      }
    }
  }
}

}  // namespace tg::TG_ISA
#endif
