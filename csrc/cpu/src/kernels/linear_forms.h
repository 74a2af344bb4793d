// Weights of four to six bits, in groups of inputs with a scale each: how int4, MXFP4 and the blocks of GGUF files become bytes.
#pragma once
#include "linear_units.h"

namespace tg::TG_ISA {

constexpr int64_t kPairBytes = 64;  // of eight inputs' nibbles

// A form says how a record of a panel, some groups of inputs, is read. kFlush: steps whose sums fit 16 bits. kShift: values
// have an offset (`zero_of`), which a product takes off by the sum of x; kMins: each group has a minimum that is taken off.
// kGroup: of inputs; 0 where only the weight knows. What is asked for ahead while a group of a panel is multiplied: a line for each of
// its pairs, the first of them `line` bytes behind the panel's first, and by `ask_scales` what is beside these.
template <bool kZeros, int kGroup>
struct Int4 {
  static constexpr int kFlush = 8, kStreams = 8;
  static constexpr bool kShift = !kZeros, kMins = kZeros;
  Vec factor[kParts], zero[kParts];

  TG_INLINE static int64_t record_bytes(const tg_weight *weight) { return weight->group * (kPanel / 2); }
  TG_INLINE static int64_t groups(const tg_weight *) { return 1; }
  TG_INLINE static int64_t line(const tg_weight *weight, int64_t group) { return ahead_in(weight, group, record_bytes(weight)); }
  TG_INLINE static void ask_scales(const tg_weight *weight, const uint8_t *panel, int64_t group) {
    ask_behind(weight, panel, group, record_bytes(weight), kPanel * 2);
    if constexpr (kZeros) ask_behind(weight, panel + weight->groups * (kPanel * 2), group, record_bytes(weight), kPanel);
  }
  TG_INLINE static int64_t pairs(const tg_weight *weight) { return (kGroup != 0 ? kGroup : weight->group) / 8; }
  TG_INLINE void open(const tg_weight *weight, const uint8_t *, int64_t panel, int64_t record) {
    load_scales(weight, panel, record, factor);
    if constexpr (kZeros) {
      const uint8_t *zeros = weight->values + panel * weight->panel_bytes + weight->value_bytes + weight->groups * (kPanel * 2);
      load_bytes<false>(zeros + record * kPanel, zero);
    }
  }
  TG_INLINE static void pair(const uint8_t *record, int64_t at, Units &low, Units &high) {
    nibbles(record + at * kPairBytes, low, high);
  }
  TG_INLINE void scales(const uint8_t *, int64_t, Vec *scale, Vec *least) const {
    for (int part = 0; part < kParts; part++) scale[part] = factor[part];
    for (int part = 0; kZeros && part < kParts; part++) least[part] = factor[part] * zero[part];
  }
};

// Groups of 32 numbers in floating point of four bits, as twice the number and 12.
struct Mxfp4 {
  static constexpr int kFlush = 4, kStreams = 8;
  static constexpr bool kShift = true, kMins = false;
  static constexpr uint8_t kNumbers[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
  Vec factor[kParts];

  TG_INLINE static int64_t record_bytes(const tg_weight *) { return 32 * (kPanel / 2); }
  TG_INLINE static int64_t groups(const tg_weight *) { return 1; }
  TG_INLINE static int64_t pairs(const tg_weight *) { return 32 / 8; }
  TG_INLINE static int64_t line(const tg_weight *weight, int64_t group) { return ahead_in(weight, group, record_bytes(weight)); }
  TG_INLINE static void ask_scales(const tg_weight *weight, const uint8_t *panel, int64_t group) {
    ask_behind(weight, panel, group, record_bytes(weight), kPanel);
  }
  TG_INLINE void open(const tg_weight *weight, const uint8_t *, int64_t panel, int64_t record) {
    load_bytes<false>(weight->values + panel * weight->panel_bytes + weight->value_bytes + record * kPanel, factor);
    for (int part = 0; part < kParts; part++) {
      factor[part] = cast<Vec>(__builtin_convertvector(factor[part], IVec) << 23) * 0.5f;  // it is the exponent of a float32
    }
  }
  TG_INLINE static void pair(const uint8_t *record, int64_t at, Units &low, Units &high) {
    nibbles(record + at * kPairBytes, low, high);
    look_up(kNumbers, low), look_up(kNumbers, high);
  }
  TG_INLINE void scales(const uint8_t *, int64_t, Vec *scale, Vec *) const {
    for (int part = 0; part < kParts; part++) scale[part] = factor[part];
  }
};

// Blocks of 256 inputs: nibbles, higher bits, the block's scale (and scale of minima) as float16, then a byte for each group.
template <int kHigh, int kGroup, bool kWithMins, int kSteps>
struct Blocks {
  static constexpr int kFlush = kSteps, kStreams = 4;
  static constexpr bool kShift = !kWithMins, kMins = kWithMins;
  static constexpr int64_t kNibbles = 256 * kPanel / 2, kPlane = 256 * kPanel * kHigh / 8;
  static constexpr int64_t kFactors = kNibbles + kPlane, kScales = kFactors + (kWithMins ? 2 : 1) * kPanel * 2;
  Vec factor[kParts], low_factor[kParts];

  TG_INLINE static int64_t record_bytes(const tg_weight *weight) { return weight->record; }
  TG_INLINE static int64_t groups(const tg_weight *) { return 256 / kGroup; }
  TG_INLINE static int64_t pairs(const tg_weight *) { return kGroup / 8; }
  TG_INLINE static int64_t line(const tg_weight *weight, int64_t group) {
    return group * weight->record / (256 / kGroup) + kAskedAhead;
  }
  TG_INLINE static void ask_scales(const tg_weight *weight, const uint8_t *panel, int64_t group) {
    constexpr int64_t kBytes = (kScales + 256 / kGroup * (kWithMins ? 2 : 1) * kPanel) * kGroup / 256, kPairs = kGroup / 8 * kPairBytes;
#pragma GCC unroll 2
    for (int64_t at = kPairs; at < kBytes; at += 64) __builtin_prefetch(panel + line(weight, group) + at, 0, 2);
  }
  TG_INLINE void open(const tg_weight *, const uint8_t *record, int64_t, int64_t) {
    load_halves(record + kFactors, factor);
    if constexpr (kWithMins) load_halves(record + kFactors + kPanel * 2, low_factor);
  }
  TG_INLINE static void pair(const uint8_t *record, int64_t at, Units &low, Units &high) {
    nibbles(record + at * kPairBytes, low, high);
    const uint8_t *plane = record + kNibbles + at * (16 * kHigh);
    if constexpr (kHigh == 1) add_bits(plane, low), add_bits(plane + 8, high);
    if constexpr (kHigh == 2) add_pairs(plane, low), add_pairs(plane + 16, high);
  }
  TG_INLINE void scales(const uint8_t *record, int64_t group, Vec *scale, Vec *least) const {
    const uint8_t *from = record + kScales + group * (kWithMins ? 2 : 1) * kPanel;
    if constexpr (kWithMins) {
      load_bytes<false>(from, scale);
      load_bytes<false>(from + kPanel, least);
      for (int part = 0; part < kParts; part++) least[part] = least[part] * low_factor[part];
    } else {
      load_bytes<true>(from, scale);
    }
    for (int part = 0; part < kParts; part++) scale[part] = scale[part] * factor[part];
  }
};
using Q4K = Blocks<0, 32, true, 8>;
using Q5K = Blocks<1, 32, true, 4>;
using Q6K = Blocks<2, 16, false, 2>;

template <typename T>
struct FormOf {
  using type = T;
};
// Calls f(FormOf<Form>()) with the form of a weight of less than eight bits.
template <typename F>
TG_INLINE void by_form(const tg_weight *weight, const F &f) {
  switch (weight->format) {
    case TG_WEIGHT_Q4_K: return f(FormOf<Q4K>());
    case TG_WEIGHT_Q5_K: return f(FormOf<Q5K>());
    case TG_WEIGHT_Q6_K: return f(FormOf<Q6K>());
    case TG_WEIGHT_INT4_ZEROS: return f(FormOf<Int4<true, 0>>());
    case TG_WEIGHT_MXFP4: return f(FormOf<Mxfp4>());
    default:
      // The commonest, whose sums need not wait for more of their group.
      if (weight->group == 32) return f(FormOf<Int4<false, 32>>());
      return f(FormOf<Int4<false, 0>>());
  }
}

}  // namespace tg::TG_ISA
