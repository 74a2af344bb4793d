// What attention of few rows in bfloat16 has in common, whatever multiplies its keys.
#pragma once

#include "attention_ahead.h"

namespace tg::TG_ISA {

#if defined(__AVX512BF16__)

constexpr int64_t kGroups = kFewUnit / 16;  // of 16 keys in a unit

// Numbers of up to 16 tokens as bfloat16, with the same distance from one to the next, in numbers.
struct Sixteen {
  const Bf16 *from;
  int64_t stride;
};

// 32 integers as bfloat16, which has all that a byte does: floats of them end in sixteen zeros.
TG_INLINE __m512i integers(__m256i bytes) {
  const __m512i low = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes))));
  const __m512i high = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1))));
  alignas(64) static constexpr uint16_t kUpper[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                      33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  return _mm512_permutex2var_epi16(low, _mm512_load_si512(kUpper), high);
}

// A unit's rows of the cache by sixteens, and which of these follow each other there.
struct Groups {
  const int64_t *rows;
  int64_t count, groups;
  bool even[kGroups];

  explicit Groups(const CacheUnit &unit) : rows(unit.rows), count(unit.count), groups(ceil_div(unit.count, 16)) {
    for (int64_t g = 0; g < groups; g++) {
      bool follows = true;
      for (int64_t i = g * 16; i < least(g * 16 + 16, count); i++) follows = follows && rows[i] == rows[g * 16] + i - g * 16;
      even[g] = follows;
    }
  }
  int64_t count_of(int64_t g) const { return least(16, count - g * 16); }

  // As they lie, or in `copies`, [16][padded] numbers for each group, with zeros behind the last row. all: that there are 16.
  // Integers are without their scales.
  TG_INLINE Sixteen at(const Attention &form, const Cached &cached, int64_t g, bool all, Bf16 *copies) const {
    if (form.cache_dtype == TG_BF16 && even[g] && cached.dim == cached.padded && (!all || count_of(g) == 16)) {
      const Bf16 *from = reinterpret_cast<const Bf16 *>(cached.address) + cached.head * cached.dim;
      return {from + rows[g * 16] * cached.stride, cached.stride};
    }
    Bf16 *to = copies + g * 16 * cached.padded;
    copy(form, cached, g, to);
    return {to, cached.padded};
  }

  // numbers [count][kFewUnit], of sixteen tokens from their first on, times the scales of integers.
  template <typename T>
  TG_INLINE void scale(const Cached &cached, int64_t g, int64_t count, T *numbers) const {
    float scales[16] = {};
    for (int64_t i = 0; i < count_of(g); i++) scales[i] = cached.scales[rows[g * 16 + i] * cached.kv_heads + cached.head];
    const Vec by = load(scales);
    for (int64_t row = 0; row < count; row++) store(numbers + row * kFewUnit, load(numbers + row * kFewUnit) * by);
  }

 private:
  void copy(const Attention &form, const Cached &cached, int64_t g, Bf16 *to) const {
    const int64_t filled = count_of(g);
    const Bf16 *places[16];
    if (form.cache_dtype == TG_I8) {
      const int8_t *from = reinterpret_cast<const int8_t *>(cached.address) + cached.head * cached.dim;
      for (int64_t i = 0; i < filled; i++) {
        const int8_t *numbers = from + rows[g * 16 + i] * cached.stride;
        Bf16 *row = to + i * cached.padded;
        int64_t at = 0;
        for (; at + 32 <= cached.dim; at += 32) {
          _mm512_storeu_si512(row + at, integers(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(numbers + at))));
        }
        for (; at < cached.padded; at += 32) {
          const __mmask32 there = static_cast<__mmask32>((uint64_t{1} << most(cached.dim - at, 0)) - 1);
          _mm512_storeu_si512(row + at, integers(_mm256_maskz_loadu_epi8(there, numbers + at)));
        }
      }
    } else {
      locate<Bf16, Bf16>(cached, rows + g * 16, filled, to, places);
      for (int64_t i = 0; i < filled; i++) {
        if (places[i] != to + i * cached.padded) memcpy(to + i * cached.padded, places[i], cached.padded * sizeof(Bf16));
      }
    }
    memset(to + filled * cached.padded, 0, (16 - filled) * cached.padded * sizeof(Bf16));
  }
};

// Of 32 numbers in their order those with even places, and those with odd ones; and back.
struct Parted {
  Vec even, odd;
};
TG_INLINE Parted part(Vec low, Vec high) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  return {_mm512_permutex2var_ps(low, even, high), _mm512_permutex2var_ps(low, odd, high)};
}
TG_INLINE void join(const Parted &parted, float *to) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  store(to, _mm512_permutex2var_ps(parted.even, low, parted.odd));
  store(to + kLanes, _mm512_permutex2var_ps(parted.even, high, parted.odd));
}

// out[row] += sum over keys of weights[row][key] * values[key], for so many rows and 32 columns a chunk. A vector of the cache has
// two of floats: the even numbers, whose bits are moved up, and the odd ones, whose bits are where they belong.
template <int kRowsOf, int kChunks, typename F>
TG_INLINE void add_values(const float *weights, const Sixteen *values, int64_t count, float *out, int64_t stride,
                          const F &before) {
  Vec total[kRowsOf][2 * kChunks];
#pragma GCC unroll 4
  for (int r = 0; r < kRowsOf; r++) {
#pragma GCC unroll 2
    for (int c = 0; c < kChunks; c++) {
      const Parted parted = part(load(out + r * stride + c * 32), load(out + r * stride + c * 32 + kLanes));
      total[r][2 * c] = parted.even, total[r][2 * c + 1] = parted.odd;
    }
  }
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  for (int64_t first = 0; first < count; first += 16, values++) {
    const Bf16 *from = values->from;
    const int64_t last = least(first + 16, count);
    const auto add = [&](int64_t key) {
      Vec numbers[2 * kChunks];
#pragma GCC unroll 2
      for (int c = 0; c < kChunks; c++) {
        const __m512i both = _mm512_loadu_si512(from + c * 32);
        numbers[2 * c] = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
        numbers[2 * c + 1] = _mm512_castsi512_ps(_mm512_and_si512(both, upper));
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRowsOf; r++) {
        const Vec weight = splat(weights[r * kFewUnit + key]);
#pragma GCC unroll 4
        for (int c = 0; c < 2 * kChunks; c++) total[r][c] = fma(weight, numbers[c], total[r][c]);
      }
      from += values->stride;
    };
    int64_t key = first;
    for (; key + 2 <= last; key += 2) before(), add(key), add(key + 1);
    if (key < last) before(), add(key);
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRowsOf; r++) {
#pragma GCC unroll 2
    for (int c = 0; c < kChunks; c++) join({total[r][2 * c], total[r][2 * c + 1]}, out + r * stride + c * 32);
  }
}

// The same for all columns.
template <int kRowsOf, typename F>
TG_INLINE void add_values(const Attention &form, const float *weights, const Sixteen *values, int64_t count, float *out,
                          const F &before) {
  Sixteen columns[kGroups];
  int64_t column = 0;
  const auto from = [&]() {
    for (int64_t g = 0; g < ceil_div(count, 16); g++) columns[g] = {values[g].from + column, values[g].stride};
    return columns;
  };
  for (; column + 64 <= form.padded_value; column += 64) {
    add_values<kRowsOf, 2>(weights, from(), count, out + column, form.padded_value, before);
  }
  for (; column < form.padded_value; column += 32) {
    add_values<kRowsOf, 1>(weights, from(), count, out + column, form.padded_value, before);
  }
}

#endif

}  // namespace tg::TG_ISA
