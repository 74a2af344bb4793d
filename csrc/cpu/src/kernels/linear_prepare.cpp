// x in the form of the product: rounded to bfloat16, quantized to eight bits, or as it is.
#include "linear.h"

namespace tg::TG_ISA {
namespace {

// AVX2 alone multiplies 16-bit integers with weights of eight bits; with smaller ones, bytes.
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(TG_AVX_VNNI)
using IntUnit = int16_t;
#else
using IntUnit = int8_t;
#endif
template <typename Unit>
TG_INLINE auto narrowed(IVec q) {
  if constexpr (sizeof(Unit) == 2) {
    return to_shorts(q);
  } else {
    return to_bytes(q);
  }
}

int64_t unit_bytes(int32_t format) {
  if (format == TG_WEIGHT_F32 || format == TG_WEIGHT_F16) return 4;
  if (is_bf16(format)) return as_floats() ? 4 : 2;
  return is_small(format) ? 1 : sizeof(IntUnit);
}

// Where a row's bytes lie.
struct Row {
  char *base;
  bool tiles;

  Row(char *values, int64_t row, int64_t row_bytes, bool tiles)
      : base(tiles ? values + row / 16 * 16 * row_bytes + row % 16 * 64 : values + row * row_bytes), tiles(tiles) {}
  // `offset`, and what is written there, lie within one run of 64 bytes.
  TG_INLINE char *at(int64_t offset) const { return tiles ? base + offset / 64 * 1024 + offset % 64 : base + offset; }
};

template <typename X>
TG_INLINE Vec load_some(const X *x, int64_t left) {
  return left >= kLanes ? load(x) : left > 0 ? load_part(x, left) : Vec{};
}

template <typename To, typename X>
void round_row(const X *x, int64_t ins, int64_t padded, const Row &to) {
  for (int64_t i = 0; i < padded; i += kLanes) {
    const Vec v = load_some(x + i, ins - i);
    if constexpr (sizeof(To) == 2) {
      store(reinterpret_cast<Bf16 *>(to.at(i * 2)), v);
    } else {
      const HVec h = to_bf16(v);
      store(reinterpret_cast<float *>(to.at(i * 4)), load(reinterpret_cast<const Bf16 *>(&h)));
    }
  }
}

template <typename X>
void copy_row(const X *x, int64_t ins, int64_t padded, const Row &to) {
  float *values = reinterpret_cast<float *>(to.base);
  int64_t i = 0;
  for (; i + kLanes <= ins; i += kLanes) store(values + i, load(x + i));
  if (i < ins) store_part(values + i, load_part(x + i, ins - i), ins - i);
  if (ins < padded) values[ins] = 0;  // half of a pair at most
}

// The largest of the absolute values; count >= 1. As integers: without its sign the larger number has the larger bits, and one
// that is none the largest, so that it makes a row's scale none.
template <typename X>
TG_INLINE float largest_of(const X *x, int64_t count) {
  IVec top[2] = {};
  const auto look = [&](IVec &so_far, Vec v) {
    const IVec bits = cast<IVec>(abs(v));
    so_far = bits > so_far ? bits : so_far;
  };
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) look(top[0], load(x + i)), look(top[1], load(x + i + kLanes));
  for (; i < count; i += kLanes) look(top[0], load_some(x + i, count - i));
  return cast<float>(largest(top[0] > top[1] ? top[0] : top[1]));
}
#if defined(__AVX512F__)
TG_INLINE float largest_of(const Bf16 *x, int64_t count) {
  const __m512i sign = _mm512_set1_epi16(0x7fff);
  __m512i top = _mm512_setzero_si512();
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) top = _mm512_max_epu16(top, _mm512_and_si512(_mm512_loadu_si512(x + i), sign));
  if (i < count) {
    const __m512i rest = _mm512_maskz_loadu_epi16((uint32_t{1} << (count - i)) - 1, x + i);
    top = _mm512_max_epu16(top, _mm512_and_si512(rest, sign));
  }
  const __m512i both = _mm512_max_epu32(_mm512_slli_epi32(top, 16), _mm512_and_si512(top, _mm512_set1_epi32(0xffff << 16)));
  return cast<float>(_mm512_reduce_max_epu32(both));
}

// Four vectors of integers as 64 bytes, in their order.
TG_INLINE __m512i to_bytes(const IVec *q) {
  const __m512i low = _mm512_packs_epi32((__m512i)q[0], (__m512i)q[1]), high = _mm512_packs_epi32((__m512i)q[2], (__m512i)q[3]);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, _mm512_packs_epi16(low, high));
}
#endif

// Quantizes x[0, count) and writes zeros up to `padded`.
template <typename Unit, typename X>
TG_INLINE void quantize(const X *x, int64_t count, int64_t padded, const Row &to, int64_t offset, int32_t zero, float *scale,
                        int32_t *offset_sum) {
  const float amax = largest_of(x, count);
  const Vec inverse = splat(amax > 0 ? 127.0f / amax : 0.0f);
  IVec total = {};
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    IVec q[4];
#pragma GCC unroll 4
    for (int part = 0; part < 4; part++) q[part] = nearest(load(x + i + part * kLanes) * inverse);
    total += (q[0] + q[1]) + (q[2] + q[3]);
    _mm512_storeu_si512(to.at(offset + i), to_bytes(q));
  }
#endif
  for (; i < padded; i += kLanes) {
    const IVec q = nearest(load_some(x + i, count - i) * inverse);
    total += q;
    const auto units = narrowed<Unit>(q);
    memcpy(to.at((offset + i) * static_cast<int64_t>(sizeof(Unit))), &units, sizeof units);
  }
  *scale = amax / 127.0f;
  *offset_sum = -sum(total) * zero;
}

template <typename X>
void prepare(const tg_weight *weight, const X *x, int64_t row, char *to, const Layout &layout) {
  const Row place(to, row, layout.row_bytes, layout.way != Way::kVectors);
  if (layout.way == Way::kUnpacked) return round_row<Bf16>(x, weight->ins, weight->padded, place);
  if (weight->format == TG_WEIGHT_F32 || weight->format == TG_WEIGHT_F16) return copy_row(x, weight->ins, weight->padded, place);
  if (is_bf16(weight->format)) {
    if (as_floats()) return round_row<float>(x, weight->ins, weight->padded, place);
    return round_row<Bf16>(x, weight->ins, weight->padded, place);
  }
  float *scales = reinterpret_cast<float *>(to + layout.values);
  int32_t *sums = reinterpret_cast<int32_t *>(to + layout.values + layout.scales);
  const int32_t zero = zero_of(weight->format);
  if (weight->groups == 0) return quantize<IntUnit>(x, weight->ins, weight->padded, place, 0, zero, scales + row, sums + row);
  for (int64_t g = 0; g < weight->groups; g++) {
    const int64_t at = g * weight->group, index = row * weight->groups + g;
    if (is_small(weight->format)) {
      quantize<int8_t>(x + at, weight->group, weight->group, place, at, zero, scales + index, sums + index);
      if (has_minima(weight->format)) sums[index] = cast<int32_t>(scales[index] * static_cast<float>(sums[index]));
    } else {
      quantize<IntUnit>(x + at, weight->group, weight->group, place, at, zero, scales + index, sums + index);
    }
  }
}

}  // namespace

Layout layout_of(const tg_weight *weight, int64_t rows) {
  Layout layout;
  layout.way = way_of(weight, rows);
  const bool unpacked = layout.way == Way::kUnpacked;
  layout.row_bytes = round_up(weight->padded * (unpacked ? 2 : unit_bytes(weight->format)), 64);
  layout.values = layout.row_bytes * round_up(rows, rows == 1 ? 1 : 16);
  const bool floats = weight->format == TG_WEIGHT_F32 || weight->format == TG_WEIGHT_F16 || is_bf16(weight->format);
  const bool integer = !unpacked && !floats;
  layout.scales = integer ? round_up(rows * most(weight->groups, 1) * 4, 64) : 0;
  layout.bytes = layout.values + 2 * layout.scales;
  return layout;
}

void prepare_row(const tg_weight *weight, const void *x, int32_t dtype, int64_t row, char *to, const Layout &layout) {
  if (dtype == TG_BF16) {
    prepare(weight, static_cast<const Bf16 *>(x), row, to, layout);
  } else {
    prepare(weight, static_cast<const float *>(x), row, to, layout);
  }
}

}  // namespace tg::TG_ISA
