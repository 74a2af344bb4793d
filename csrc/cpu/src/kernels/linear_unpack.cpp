// Weights in groups as tiles of bfloat16, for products of many rows: a part of a panel is unpacked into the first-level cache
// and multiplied with all of them.
//
// To multiply integers and scale the sums of each group takes longer from some rows on, since a group fills half a tile, whose
// sums have to leave it. Numbers are rounded to bfloat16, and so is x, which loses less than it does as integers.
#include "linear_forms.h"

namespace tg::TG_ISA {

#if defined(__AMX_TILE__)
namespace {

// Groups of bytes, as a form.
struct Int8Groups {
  static constexpr bool kMins = false;
  Vec factor[kParts];

  TG_INLINE static int64_t record_bytes(const tg_weight *weight) { return weight->group * kPanel; }
  TG_INLINE static int64_t groups(const tg_weight *) { return 1; }
  TG_INLINE static int64_t pairs(const tg_weight *weight) { return weight->group / 8; }
  TG_INLINE void open(const tg_weight *weight, const uint8_t *, int64_t panel, int64_t record) {
    load_scales(weight, panel, record, factor);
  }
  TG_INLINE static void pair(const uint8_t *record, int64_t at, Units &low, Units &high) {
    low.bytes = _mm512_loadu_si512(record + at * 128);
    high.bytes = _mm512_loadu_si512(record + at * 128 + 64);
  }
  TG_INLINE void scales(const uint8_t *, int64_t, Vec *scale, Vec *) const { scale[0] = factor[0]; }
};

// Two numbers of each of 16 outputs, rounded to bfloat16, halves upwards, as a row of a tile.
TG_INLINE void store_pairs(Vec first, Vec second, char *to) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(first), half), 16);
  const __m512i high = _mm512_add_epi32(_mm512_castps_si512(second), half);
  constexpr int kUpperOrLower = 0xea;  // (high and its upper bits) or low
  _mm512_store_si512(to, _mm512_ternarylogic_epi32(high, _mm512_set1_epi32(static_cast<int>(0xffff0000)), low, kUpperOrLower));
}

// Four inputs of 16 outputs: two rows of a tile.
TG_INLINE void store_units(const Units &units, Vec scale, Vec base, char *to) {
  const __m512i byte = _mm512_set1_epi32(255);
  const auto number = [&](__m512i whole) { return fma(_mm512_cvtepi32_ps(whole), scale, base); };
  const Vec a = number(_mm512_and_si512(units.bytes, byte));
  const Vec b = number(_mm512_and_si512(_mm512_srli_epi32(units.bytes, 8), byte));
  const Vec c = number(_mm512_and_si512(_mm512_srli_epi32(units.bytes, 16), byte));
  const Vec d = number(_mm512_srli_epi32(units.bytes, 24));
  store_pairs(a, b, to);
  store_pairs(c, d, to + 64);
}

template <typename Form>
void unpack(const tg_weight *weight, int64_t panel, int64_t first, int64_t count, char *to) {
  const int64_t groups = Form::groups(weight), pairs = Form::pairs(weight), bytes = Form::record_bytes(weight);
  const int64_t inputs = groups * pairs * 8, begin = first / inputs, end = (first + count) / inputs;
  const uint8_t *record = weight->values + panel * weight->panel_bytes + begin * bytes;
  const float zero = static_cast<float>(zero_of(weight->format));
  for (int64_t at = begin; at < end; at++, record += bytes) {
    Form form;
    form.open(weight, record, panel, at);
    for (int64_t group = 0; group < groups; group++) {
      Vec scale[kParts], least[kParts];
      form.scales(record, group, scale, least);
      const Vec base = Form::kMins ? -least[0] : scale[0] * -zero;
      for (int64_t p = group * pairs; p < (group + 1) * pairs; p++, to += 4 * 64) {
        Units low, high;
        Form::pair(record, p, low, high);
        store_units(low, scale[0], base, to);
        store_units(high, scale[0], base, to + 2 * 64);
      }
    }
  }
}

}  // namespace

void unpack_panel(const tg_weight *weight, int64_t panel, int64_t first, int64_t count, char *to) {
  if (weight->format == TG_WEIGHT_BF16_COMPACT) return unpack_compact(weight, panel, first, count, to);
  if (weight->format == TG_WEIGHT_INT8_GROUPS) return unpack<Int8Groups>(weight, panel, first, count, to);
  by_form(weight, [&](auto form) { unpack<typename decltype(form)::type>(weight, panel, first, count, to); });
}
#endif

}  // namespace tg::TG_ISA
