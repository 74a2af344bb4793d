// Products with weights of four to six bits, in groups of inputs with a scale each: int4, MXFP4 and the blocks of GGUF files.
//
// Eight inputs of sixteen outputs are unpacked to bytes in registers, once for all rows that are multiplied together.
#include "linear_units.h"

namespace tg::TG_ISA {
namespace {

constexpr int64_t kPairBytes = 64;  // of eight inputs' nibbles

// A form says how a record of a panel, some groups of inputs, is read. kFlush: steps whose sums fit 16 bits. kShift: values
// have an offset that is taken off by the sum of x; kMins: each group has a minimum that is taken off.
// kGroup: of inputs; 0 where only the weight knows.
template <bool kZeros, int kGroup>
struct Int4 {
  static constexpr int kFlush = 8, kStreams = 8;
  static constexpr bool kShift = !kZeros, kMins = kZeros;
  Vec factor[kParts], zero[kParts];

  TG_INLINE static int64_t record_bytes(const tg_weight *weight) { return weight->group * (kPanel / 2); }
  TG_INLINE static int64_t groups(const tg_weight *) { return 1; }
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

// The sums of kRows rows from `row` on and of the panels panel, panel + apart, ...
template <typename Form, int kRows, int kStreams>
void block(const Linear &job, int64_t row, int64_t panel, int64_t apart) {
  constexpr int kBeside = kStreams < 2 ? 1 : 2;  // streams whose units are in registers together, for which each part of x is read once
  const tg_weight *weight = job.weight;
  const int64_t groups = Form::groups(weight), pairs = Form::pairs(weight), bytes = Form::record_bytes(weight);
  const uint8_t *record[kStreams], *begin[kStreams];
  for (int s = 0; s < kStreams; s++) record[s] = begin[s] = weight->values + (panel + s * apart) * weight->panel_bytes;
  const Ahead ahead(job, row, kRows, weight->groups * pairs);
  int64_t step = 0;
  const char *x = job.x.values + row * job.x.row_bytes;
  const float *x_scales = job.x.scales + row * weight->groups;
  const int32_t *x_sums = job.x.sums + row * weight->groups;
  Vec sums[kRows][kStreams][kParts] = {};
  for (int64_t at = 0; at * groups < weight->groups; at++) {
    Form form[kStreams];
    for (int s = 0; s < kStreams; s++) form[s].open(weight, record[s], panel + s * apart, at);
    for (int64_t group = 0; group < groups; group++) {
      typename Small::Acc acc[kRows][kStreams];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; r++) {
        const int32_t sum = Form::kShift ? x_sums[r * weight->groups] : 0;
#pragma GCC unroll 8
        for (int s = 0; s < kStreams; s++) acc[r][s] = Small::start(sum);
      }
      for (int64_t first = 0; first < pairs; first += Form::kFlush / 2) {
#pragma GCC unroll 4
        for (int64_t p = first; p < first + Form::kFlush / 2; p++) {
#pragma GCC unroll 8
          for (int s = 0; s < kStreams; s += kBeside) {
            Units low[kBeside], high[kBeside];
#pragma GCC unroll 2
            for (int i = 0; i < kBeside; i++) {
              Form::pair(record[s + i], group * pairs + p, low[i], high[i]);
              ahead.ask(begin[s + i], step + p);
            }
#pragma GCC unroll 8
            for (int r = 0; r < kRows; r++) {
              const char *eight = x + r * job.x.row_bytes + p * 8;
              const auto first_four = Small::spread(eight), second_four = Small::spread(eight + 4);
#pragma GCC unroll 2
              for (int i = 0; i < kBeside; i++) Small::step(acc[r][s + i], low[i], first_four);
#pragma GCC unroll 2
              for (int i = 0; i < kBeside; i++) Small::step(acc[r][s + i], high[i], second_four);
            }
          }
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 8
          for (int s = 0; s < kStreams; s++) Small::flush(acc[r][s]);
        }
      }
#pragma GCC unroll 8
      for (int s = 0; s < kStreams; s++) {
        Vec scale[kParts], least[kParts];
        form[s].scales(record[s], group, scale, least);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; r++) {
          const float x_scale = x_scales[r * weight->groups];
          Vec dots[kParts];
          Small::finish(acc[r][s], dots);
          for (int part = 0; part < kParts; part++) {
            Vec &sum = sums[r][s][part];
            sum = fma(dots[part] * scale[part], splat(x_scale), sum);
            if constexpr (Form::kMins) sum = fma(least[part], splat(cast<float>(x_sums[r * weight->groups])), sum);
          }
        }
      }
      x += pairs * 8;
      step += pairs;
      x_scales++, x_sums++;
    }
    for (int s = 0; s < kStreams; s++) record[s] += bytes;
  }
  for (int s = 0; s < kStreams; s++) {
    emit<kRows>(job, row, panel + s * apart, 0, kParts, [&](int r, Vec *to) {
      for (int part = 0; part < kParts; part++) to[part] = sums[r][s][part];
    });
  }
}

constexpr int kMostRows = kLanes == 16 ? 8 : Small::kInRegisters ? 4 : 1;  // that the registers hold

template <typename Form, int kStreams>
void panels_at(const Linear &job, int64_t panel, int64_t apart) {
  by_blocks<kMostRows>(job.rows, [&](auto rows, int64_t row) { block<Form, decltype(rows)::value, kStreams>(job, row, panel, apart); });
}

template <typename Form, int kStreams>
int64_t streams_by(const Linear &job, int64_t begin) {
  const int64_t apart = (job.panels.end - begin) / kStreams;
  for (int64_t i = 0; i < apart; i++) {
    if constexpr (kStreams > 2) {
      block<Form, 1, kStreams>(job, 0, begin + i, apart);
    } else {
      panels_at<Form, kStreams>(job, begin + i, apart);
    }
  }
  return begin + apart * kStreams;
}

template <typename Form>
void multiply_by(const Linear &job) {
  int64_t panel = job.panels.begin;
  if constexpr (kLanes == 16) {
    if (reads_many() && job.rows == 1) panel = streams_by<Form, Form::kStreams>(job, panel);
    panel = streams_by<Form, 2>(job, panel);
  }
  streams_by<Form, 1>(job, panel);
}

}  // namespace

void multiply_small(const Linear &job) {
  switch (job.weight->format) {
    case TG_WEIGHT_Q4_K: return multiply_by<Q4K>(job);
    case TG_WEIGHT_Q5_K: return multiply_by<Q5K>(job);
    case TG_WEIGHT_Q6_K: return multiply_by<Q6K>(job);
    case TG_WEIGHT_INT4_ZEROS: return multiply_by<Int4<true, 0>>(job);
    case TG_WEIGHT_MXFP4: return multiply_by<Mxfp4>(job);
    default:
      // The commonest, whose sums need not wait for more of their group.
      if (job.weight->group == 32) return multiply_by<Int4<false, 32>>(job);
      return multiply_by<Int4<false, 0>>(job);
  }
}

}  // namespace tg::TG_ISA
