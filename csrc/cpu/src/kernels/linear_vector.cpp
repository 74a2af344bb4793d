// Products by vectors: one row, or a few at a time. Several panels of the weight are read side by side, since one stream of
// reads does not reach the bandwidth of the memory; on some processors two do, and eight do not.
#include "linear.h"

namespace tg::TG_ISA {
namespace {

// The vector products. A step takes 64 bytes of the weight, the same inputs of 16 outputs, and a unit of x.
struct Floats {
  static constexpr int kUnit = 4;    // bytes of x in a step
  static constexpr bool kInteger = false;
  struct Acc {
    Vec part[kParts];
  };
  TG_INLINE static Acc start(int32_t) { return {}; }
  TG_INLINE static void finish(const Acc &acc, Vec *sums) {
    for (int part = 0; part < kParts; part++) sums[part] = acc.part[part];
  }
  TG_INLINE static void step(Acc &acc, const uint8_t *weight, const char *x) {
    float unit;
    memcpy(&unit, x, 4);
    for (int part = 0; part < kParts; part++) {
      acc.part[part] = fma(splat(unit), load(reinterpret_cast<const float *>(weight) + part * kLanes), acc.part[part]);
    }
  }
};

struct Halves : Floats {
  static constexpr int kUnit = 8;  // two floats
  TG_INLINE static void step(Acc &acc, const uint8_t *weight, const char *x) {
    const Half *halves = reinterpret_cast<const Half *>(weight);
    for (int i = 0; i < 2; i++) {
      float unit;
      memcpy(&unit, x + i * 4, 4);
      for (int part = 0; part < kParts; part++) {
        acc.part[part] = fma(splat(unit), load(halves + i * kPanel + part * kLanes), acc.part[part]);
      }
    }
  }
};

struct Bf16s : Floats {
  static constexpr int kUnit = 8;  // two floats
  TG_INLINE static void step(Acc &acc, const uint8_t *weight, const char *x) {
    float first, second;
    memcpy(&first, x, 4);
    memcpy(&second, x + 4, 4);
    for (int part = 0; part < kParts; part++) {
      UVec both;
      memcpy(&both, weight + part * kLanes * 4, sizeof both);
      acc.part[part] = fma(splat(first), cast<Vec>(both << 16), acc.part[part]);
      acc.part[part] = fma(splat(second), cast<Vec>(both & 0xffff0000u), acc.part[part]);
    }
  }
};

#if defined(__AVX512BF16__)
struct Bf16Pairs : Floats {
  TG_INLINE static void step(Acc &acc, const uint8_t *weight, const char *x) {
    int32_t unit;
    memcpy(&unit, x, 4);
    acc.part[0] = _mm512_dpbf16_ps(acc.part[0], cast<__m512bh>(_mm512_set1_epi32(unit)),
                                   cast<__m512bh>(_mm512_loadu_si512(weight)));
  }
};
#endif

#if defined(__AVX512F__)
struct Bytes {
  static constexpr int kUnit = 4;
  static constexpr bool kInteger = true;
  struct Acc {
    __m512i sum;
  };
  TG_INLINE static Acc start(int32_t first) { return {_mm512_set1_epi32(first)}; }
  TG_INLINE static void finish(const Acc &acc, Vec *sums) { sums[0] = _mm512_cvtepi32_ps(acc.sum); }
  TG_INLINE static void dot(Acc &acc, __m512i weight, const char *x) {
    int32_t unit;
    memcpy(&unit, x, 4);
    acc.sum = add_bytes(acc.sum, weight, _mm512_set1_epi32(unit));
  }
  TG_INLINE static void step(Acc &acc, const uint8_t *weight, const char *x) { dot(acc, _mm512_loadu_si512(weight), x); }
};
#elif defined(__AVX2__)
struct Bytes {
  static constexpr int kUnit = 8;  // four 16-bit numbers
  static constexpr bool kInteger = true;
  struct Acc {
    __m256i pairs[4];  // of four outputs each: the sums of two inputs beside those of the other two
  };
  TG_INLINE static Acc start(int32_t first) {
    const __m256i each = _mm256_set1_epi64x(static_cast<uint32_t>(first));
    return {{each, each, each, each}};
  }
  TG_INLINE static void finish(const Acc &acc, Vec *sums) {
    for (int part = 0; part < 2; part++) {
      const __m256i mixed = _mm256_hadd_epi32(acc.pairs[2 * part], acc.pairs[2 * part + 1]);
      sums[part] = _mm256_cvtepi32_ps(_mm256_permute4x64_epi64(mixed, 0xd8));
    }
  }
  TG_INLINE static void dot(Acc &acc, int quarter, __m128i weight, const char *x) {
    int64_t unit;
    memcpy(&unit, x, 8);
    const __m256i products = _mm256_madd_epi16(_mm256_cvtepu8_epi16(weight), _mm256_set1_epi64x(unit));
    acc.pairs[quarter] = _mm256_add_epi32(acc.pairs[quarter], products);
  }
  TG_INLINE static void step(Acc &acc, const uint8_t *weight, const char *x) {
    for (int i = 0; i < 4; i++) dot(acc, i, _mm_loadu_si128(reinterpret_cast<const __m128i *>(weight + i * 16)), x);
  }
};
#elif defined(__ARM_FEATURE_DOTPROD)
struct Bytes {
  static constexpr int kUnit = 4;
  static constexpr bool kInteger = true;
  struct Acc {
    int32x4_t part[kParts];
  };
  // The products are of signed bytes: what was added to the weight's values is taken off them, not off the sum.
  TG_INLINE static Acc start(int32_t) { return {}; }
  TG_INLINE static void finish(const Acc &acc, Vec *sums) {
    for (int part = 0; part < kParts; part++) sums[part] = vcvtq_f32_s32(acc.part[part]);
  }
  TG_INLINE static void step(Acc &acc, const uint8_t *weight, const char *x) {
    int32_t unit;
    memcpy(&unit, x, 4);
    const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(unit));
    for (int part = 0; part < kParts; part++) {
      const uint8x16_t values = veorq_u8(vld1q_u8(weight + part * 16), vdupq_n_u8(0x80));
      acc.part[part] = vdotq_s32(acc.part[part], vreinterpretq_s8_u8(values), four);
    }
  }
};
#elif !defined(__AVX2__)
struct Bytes {
  static constexpr int kUnit = 4;
  static constexpr bool kInteger = true;
  struct Acc {
    int32_t sum[kPanel];
  };
  TG_INLINE static Acc start(int32_t first) {
    Acc acc;
    for (int o = 0; o < kPanel; o++) acc.sum[o] = first;
    return acc;
  }
  TG_INLINE static void finish(const Acc &acc, Vec *sums) {
    for (int o = 0; o < kPanel; o++) sums[o / kLanes][o % kLanes] = static_cast<float>(acc.sum[o]);
  }
  TG_INLINE static void step(Acc &acc, const uint8_t *weight, const char *x) {
    for (int o = 0; o < kPanel; o++) {
      for (int i = 0; i < 4; i++) acc.sum[o] += weight[o * 4 + i] * static_cast<int8_t>(x[i]);
    }
  }
};
#endif

// acc[r][s] += the steps from `begin` to `end` of row r of x and stream s of the weight.
template <typename Dot, int kRows, int kStreams>
TG_INLINE void multiply(typename Dot::Acc (&acc)[kRows][kStreams], const uint8_t *const (&weight)[kStreams], const char *x,
                        int64_t x_stride, int64_t begin, int64_t end, const Ahead &ahead) {
  for (int64_t i = begin; i < end; i++) {
    if constexpr (kLanes == 16) {
      // Row by row: the registers hold what all streams have in this step, and not in turn what all rows have.
#pragma GCC unroll 8
      for (int s = 0; s < kStreams; s++) ahead.ask(weight[s], i);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 8
        for (int s = 0; s < kStreams; s++) Dot::step(acc[r][s], weight[s] + i * 64, x + r * x_stride + i * Dot::kUnit);
      }
    } else {
#pragma GCC unroll 8
      for (int s = 0; s < kStreams; s++) {
        ahead.ask(weight[s], i);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; r++) Dot::step(acc[r][s], weight[s] + i * 64, x + r * x_stride + i * Dot::kUnit);
      }
    }
  }
}

// The sums of kRows rows from `row` on and of the panels panel, panel + apart, ...
template <typename Dot, int kRows, int kStreams>
void block(const Linear &job, int64_t row, int64_t panel, int64_t apart) {
  const tg_weight *weight = job.weight;
  const uint8_t *from[kStreams];
  for (int s = 0; s < kStreams; s++) from[s] = weight->values + (panel + s * apart) * weight->panel_bytes;
  const char *x = job.x.values + row * job.x.row_bytes;
  typename Dot::Acc acc[kRows][kStreams];
  if (!has_groups(weight)) {
    for (int r = 0; r < kRows; r++) {
      for (int s = 0; s < kStreams; s++) acc[r][s] = Dot::start(Dot::kInteger ? job.x.sums[row + r] : 0);
    }
    const int64_t steps = weight->panel_bytes / 64;
    multiply<Dot, kRows, kStreams>(acc, from, x, job.x.row_bytes, 0, steps, Ahead(job, row, kRows, steps));
    for (int r = 0; r < kRows; r++) {
      for (int s = 0; s < kStreams; s++) {
        Vec sums[kParts];
        Dot::finish(acc[r][s], sums);
        const int64_t at = panel + s * apart;
        for (int part = 0; Dot::kInteger && part < kParts; part++) {
          sums[part] = sums[part] * (load(weight->scales + at * kPanel + part * kLanes) * job.x.scales[row + r]);
        }
        emit(job, row + r, at, sums);
      }
    }
    return;
  }
  if constexpr (Dot::kInteger) {
    Vec sums[kRows][kStreams][kParts] = {};
    const int64_t steps = weight->group / 4;
    const Ahead ahead(job, row, kRows, weight->groups * steps);
    for (int64_t g = 0; g < weight->groups; g++) {
      for (int r = 0; r < kRows; r++) {
        for (int s = 0; s < kStreams; s++) acc[r][s] = Dot::start(job.x.sums[(row + r) * weight->groups + g]);
      }
      multiply<Dot, kRows, kStreams>(acc, from, x, job.x.row_bytes, g * steps, (g + 1) * steps, ahead);
#pragma GCC unroll 8
      for (int s = 0; s < kStreams; s++) {
        Vec scales[kParts];
        load_scales(weight, panel + s * apart, g, scales);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; r++) {
          Vec dots[kParts];
          Dot::finish(acc[r][s], dots);
          for (int part = 0; part < kParts; part++) {
            const Vec scale = scales[part] * job.x.scales[(row + r) * weight->groups + g];
            sums[r][s][part] = fma(dots[part], scale, sums[r][s][part]);
          }
        }
      }
    }
    for (int r = 0; r < kRows; r++) {
      for (int s = 0; s < kStreams; s++) emit(job, row + r, panel + s * apart, sums[r][s]);
    }
  }
}

// So many bytes of x stay in the second-level cache while all panels pass by; and at least so many rows, since each time the panels
// come from farther away.
constexpr int64_t kNearBytes = 512 << 10, kNearRows = 32;

// How many accumulators of a panel the registers hold.
constexpr int kRoom = kLanes == 16 ? 16 : 4;

template <typename Dot, int kRows, int kStreams>
int64_t rows_by(const Linear &job, int64_t row, int64_t panel, int64_t apart) {
  for (; row + kRows <= job.rows; row += kRows) block<Dot, kRows, kStreams>(job, row, panel, apart);
  return row;
}

// All rows times kStreams panels; the most rows at a time that the registers hold.
template <typename Dot, int kStreams>
void panels_at(const Linear &job, int64_t panel, int64_t apart) {
  int64_t row = 0;
  if constexpr (kStreams * 8 <= kRoom) row = rows_by<Dot, 8, kStreams>(job, row, panel, apart);
  if constexpr (kStreams * 4 <= kRoom) row = rows_by<Dot, 4, kStreams>(job, row, panel, apart);
  if constexpr (kStreams * 2 <= kRoom) row = rows_by<Dot, 2, kStreams>(job, row, panel, apart);
  rows_by<Dot, 1, kStreams>(job, row, panel, apart);
}

template <typename Dot, int kStreams>
int64_t streams_by(const Linear &job, int64_t begin) {
  const int64_t apart = (job.panels.end - begin) / kStreams;
  for (int64_t i = 0; i < apart; i++) panels_at<Dot, kStreams>(job, begin + i, apart);
  return begin + apart * kStreams;
}

template <typename Dot>
void multiply_by(const Linear &job) {
  int64_t begin = job.panels.begin;
  if constexpr (kLanes == 16) {
    if (reads_many() && job.rows == 1) begin = streams_by<Dot, 8>(job, begin);
    if (reads_many() && job.rows <= 4) begin = streams_by<Dot, 4>(job, begin);
    begin = streams_by<Dot, 2>(job, begin);
  } else {
    if (job.rows == 1) begin = streams_by<Dot, 4>(job, begin);
    if (job.rows <= 2) begin = streams_by<Dot, 2>(job, begin);
  }
  streams_by<Dot, 1>(job, begin);
}

// Some rows of a product, as if they were all.
Linear part_of(const Linear &job, int64_t first, int64_t count) {
  Linear part = job;
  const int64_t scales = first * most(job.weight->groups, 1);
  part.x.values += first * job.x.row_bytes;
  if (part.x.scales != nullptr) part.x.scales += scales, part.x.sums += scales;
  part.y += first * job.y_stride;
  part.first = 0;
  part.rows = count;
  return part;
}

void multiply_near(const Linear &job) {
  if (is_small(job.weight->format)) return multiply_small(job);
  switch (job.weight->format) {
    case TG_WEIGHT_F32: return multiply_by<Floats>(job);
    case TG_WEIGHT_BF16:
#if defined(__AVX512BF16__)
      if (!as_floats()) return multiply_by<Bf16Pairs>(job);
#endif
      return multiply_by<Bf16s>(job);
    case TG_WEIGHT_F16: return multiply_by<Halves>(job);
    default: return multiply_by<Bytes>(job);
  }
}

}  // namespace

void multiply_rows(const Linear &job) {
  const int64_t count = job.rows - job.first, near = most(kNearBytes / job.x.row_bytes, kNearRows);
  const int64_t at_once = round_up(ceil_div(count, most(ceil_div(count, near), 1)), 8);
  for (int64_t first = job.first; first < job.rows; first += at_once) {
    multiply_near(part_of(job, first, least(at_once, job.rows - first)));
  }
}

}  // namespace tg::TG_ISA
