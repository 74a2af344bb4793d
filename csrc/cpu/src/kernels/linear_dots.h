// Products by vectors: what a step of each form of weight is, and the loop over steps.
#pragma once
#include "linear.h"

namespace tg::TG_ISA {

// The vector products. A step takes 64 bytes of the weight, the same inputs of 16 outputs, and a unit of x, in kTurns turns: what a
// turn takes of the weight is brought into form once for all rows. A product may do with a part of the panel's outputs, kSums vectors
// of them, where the sums of all would leave registers for too few rows.
struct Floats {
  static constexpr int kUnit = 4;    // bytes of x in a step
  static constexpr int kTurns = 1;
  static constexpr int kSums = kParts;
  static constexpr int kSumRegisters = kParts;  // that hold the sums of a row
  static constexpr bool kInteger = false;
  struct Acc {
    Vec part[kParts];
  };
  struct Right {
    Vec part[kParts];
  };
  TG_INLINE static Acc start(int32_t) { return {}; }
  TG_INLINE static void finish(const Acc &acc, Vec *sums) {
    for (int part = 0; part < kParts; part++) sums[part] = acc.part[part];
  }
  TG_INLINE static Right take(const uint8_t *weight, int) {
    Right right;
    for (int part = 0; part < kParts; part++) right.part[part] = load(reinterpret_cast<const float *>(weight) + part * kLanes);
    return right;
  }
  TG_INLINE static void step(Acc &acc, const Right &right, const char *x, int turn) {
    const float *unit = reinterpret_cast<const float *>(x) + turn;
    if constexpr (kParts == 2) return add_products(acc.part[0], acc.part[1], unit, right.part[0], right.part[1]);
    for (int part = 0; part < kParts; part++) acc.part[part] = fma(splat(*unit), right.part[part], acc.part[part]);
  }
};

struct Halves : Floats {
  static constexpr int kUnit = 8;  // two floats
  static constexpr int kTurns = 2;
  TG_INLINE static Right take(const uint8_t *weight, int turn) {
    Right right;
    const Half *halves = reinterpret_cast<const Half *>(weight) + turn * kPanel;
    for (int part = 0; part < kParts; part++) right.part[part] = load(halves + part * kLanes);
    return right;
  }
};

struct Bf16s : Floats {
  static constexpr int kUnit = 8;  // two floats
  static constexpr int kTurns = 2;
  TG_INLINE static Right take(const uint8_t *weight, int turn) {
    Right right;
    for (int part = 0; part < kParts; part++) {
      UVec both;
      memcpy(&both, weight + part * kLanes * 4, sizeof both);
      right.part[part] = cast<Vec>(turn == 0 ? both << 16 : both & 0xffff0000u);
    }
    return right;
  }
};

#if defined(__AVX512BF16__)
struct Bf16Pairs : Floats {
  struct Right {
    __m512i pairs;
  };
  TG_INLINE static Right take(const uint8_t *weight, int) { return {_mm512_loadu_si512(weight)}; }
  TG_INLINE static void step(Acc &acc, const Right &right, const char *x, int) {
    int32_t unit;
    memcpy(&unit, x, 4);
    acc.part[0] = _mm512_dpbf16_ps(acc.part[0], cast<__m512bh>(_mm512_set1_epi32(unit)), cast<__m512bh>(right.pairs));
  }
};
#endif

#if defined(__AVX512F__)
struct Bytes {
  static constexpr int kUnit = 4, kTurns = 1, kSums = kParts, kSumRegisters = 1;
  static constexpr bool kInteger = true;
  struct Acc {
    __m512i sum;
  };
  struct Right {
    __m512i bytes;
  };
  TG_INLINE static Acc start(int32_t first) { return {_mm512_set1_epi32(first)}; }
  TG_INLINE static void finish(const Acc &acc, Vec *sums) { sums[0] = _mm512_cvtepi32_ps(acc.sum); }
  TG_INLINE static Right take(const uint8_t *weight, int) { return {_mm512_loadu_si512(weight)}; }
  TG_INLINE static void step(Acc &acc, const Right &right, const char *x, int) {
    int32_t unit;
    memcpy(&unit, x, 4);
    acc.sum = add_bytes(acc.sum, right.bytes, _mm512_set1_epi32(unit));
  }
};
#elif defined(TG_AVX_VNNI)
struct Bytes {
  static constexpr int kUnit = 4, kTurns = 1, kSums = kParts, kSumRegisters = kParts;
  static constexpr bool kInteger = true;
  struct Acc {
    Vec part[kParts];  // the bits of integers: an __m256i might be anywhere in memory, and GCC would store it in each step
  };
  using Right = Acc;
  TG_INLINE static Acc start(int32_t first) {
    const Vec each = cast<Vec>(_mm256_set1_epi32(first));
    return {each, each};
  }
  TG_INLINE static void finish(const Acc &acc, Vec *sums) {
    for (int part = 0; part < kParts; part++) sums[part] = _mm256_cvtepi32_ps(cast<__m256i>(acc.part[part]));
  }
  TG_INLINE static Right take(const uint8_t *weight, int) {
    Right right;
    for (int part = 0; part < kParts; part++) right.part[part] = load(reinterpret_cast<const float *>(weight) + part * kLanes);
    return right;
  }
  TG_INLINE static void step(Acc &acc, const Right &right, const char *x, int) {
    add_bytes(acc.part[0], acc.part[1], x, right.part[0], right.part[1]);
  }
};
#elif defined(__AVX2__)
// Of kHalves * 8 outputs.
template <int kHalves>
struct SomeBytes {
  static constexpr int kUnit = 8;  // four 16-bit numbers
  static constexpr int kTurns = kHalves, kSums = kHalves, kSumRegisters = 2 * kHalves;
  static constexpr bool kInteger = true;
  struct Acc {
    __m256i pairs[kSumRegisters];  // of four outputs each: the sums of two inputs beside those of the other two
  };
  struct Right {
    __m256i shorts[2];
  };
  TG_INLINE static Acc start(int32_t first) {
    Acc acc;
    for (int i = 0; i < kSumRegisters; i++) acc.pairs[i] = _mm256_set1_epi64x(static_cast<uint32_t>(first));
    return acc;
  }
  TG_INLINE static void finish(const Acc &acc, Vec *sums) {
    for (int part = 0; part < kHalves; part++) {
      const __m256i mixed = _mm256_hadd_epi32(acc.pairs[2 * part], acc.pairs[2 * part + 1]);
      sums[part] = _mm256_cvtepi32_ps(_mm256_permute4x64_epi64(mixed, 0xd8));
    }
  }
  TG_INLINE static Right take(const uint8_t *weight, int turn) {
    const __m128i *from = reinterpret_cast<const __m128i *>(weight + turn * 32);
    return {_mm256_cvtepu8_epi16(_mm_loadu_si128(from)), _mm256_cvtepu8_epi16(_mm_loadu_si128(from + 1))};
  }
  TG_INLINE static void step(Acc &acc, const Right &right, const char *x, int turn) {
    // As in add_products.
    __m256i unit, products;
    asm("vpbroadcastq %4, %2\n\tvpmaddwd %6, %2, %3\n\tvpmaddwd %5, %2, %2\n\tvpaddd %2, %0, %0\n\tvpaddd %3, %1, %1"
        : "+x"(acc.pairs[turn * 2]), "+x"(acc.pairs[turn * 2 + 1]), "=&x"(unit), "=&x"(products)
        : "m"(*reinterpret_cast<const char(*)[8]>(x)), "x"(right.shorts[0]), "x"(right.shorts[1]));
  }
};
using Bytes = SomeBytes<2>;
#elif defined(__ARM_FEATURE_DOTPROD)
struct Bytes {
  static constexpr int kUnit = 4, kTurns = 1, kSums = kParts, kSumRegisters = kParts;
  static constexpr bool kInteger = true;
  struct Acc {
    int32x4_t part[kParts];
  };
  struct Right {
    int8x16_t part[kParts];
  };
  // The products are of signed bytes: what was added to the weight's values is taken off them, not off the sum.
  TG_INLINE static Acc start(int32_t) { return {}; }
  TG_INLINE static void finish(const Acc &acc, Vec *sums) {
    for (int part = 0; part < kParts; part++) sums[part] = vcvtq_f32_s32(acc.part[part]);
  }
  TG_INLINE static Right take(const uint8_t *weight, int) {
    Right right;
    for (int part = 0; part < kParts; part++) {
      right.part[part] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(weight + part * 16), vdupq_n_u8(0x80)));
    }
    return right;
  }
  TG_INLINE static void step(Acc &acc, const Right &right, const char *x, int) {
    int32_t unit;
    memcpy(&unit, x, 4);
    const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(unit));
    for (int part = 0; part < kParts; part++) acc.part[part] = vdotq_s32(acc.part[part], right.part[part], four);
  }
};
#else
struct Bytes {
  static constexpr int kUnit = 4, kTurns = 1, kSums = kParts, kSumRegisters = kParts;
  static constexpr bool kInteger = true;
  struct Acc {
    int32_t sum[kPanel];
  };
  using Right = const uint8_t *;
  TG_INLINE static Acc start(int32_t first) {
    Acc acc;
    for (int o = 0; o < kPanel; o++) acc.sum[o] = first;
    return acc;
  }
  TG_INLINE static void finish(const Acc &acc, Vec *sums) {
    for (int o = 0; o < kPanel; o++) sums[o / kLanes][o % kLanes] = static_cast<float>(acc.sum[o]);
  }
  TG_INLINE static Right take(const uint8_t *weight, int) { return weight; }
  TG_INLINE static void step(Acc &acc, Right weight, const char *x, int) {
    for (int o = 0; o < kPanel; o++) {
      for (int i = 0; i < 4; i++) acc.sum[o] += weight[o * 4 + i] * static_cast<int8_t>(x[i]);
    }
  }
};
#endif

// Where rows of x are read, with a register for four of them: GCC would take one for each, and has not as many.
template <int kRows>
class Fours {
 public:
  TG_INLINE Fours(const char *first, int64_t stride) : stride_(stride) {
#pragma GCC unroll 4
    for (int i = 0; i < kCount; i++) {
      at_[i] = first + 4 * i * stride;
      asm("" : "+r"(at_[i]));
    }
  }
  TG_INLINE const char *row(int row) const { return at_[row / 4] + row % 4 * stride_; }
  TG_INLINE void advance(int64_t bytes) {
#pragma GCC unroll 4
    for (int i = 0; i < kCount; i++) at_[i] += bytes;
  }

 private:
  static constexpr int kCount = (kRows + 3) / 4;
  const char *at_[kCount];
  int64_t stride_;
};

// acc[r][s] = start(r) and the steps from `begin` to `end` of row r of x and stream s of the weight. Row by row within a turn: the
// registers hold what all streams have there, and not in turn what all rows have.
// ahead: asked here and not through a function of the caller's, since GCC leaves out calls of what only asks for memory.
template <typename Dot, int kRows, int kStreams, typename F>
TG_INLINE void multiply(typename Dot::Acc (&acc)[kRows][kStreams], const F &start, const uint8_t *const (&weight)[kStreams],
                        const char *x, int64_t x_stride, int64_t begin, int64_t end, Ahead &ahead) {
  typename Dot::Acc held[kRows][kStreams];  // in registers: what is behind the loop takes those of `acc` one by one, from memory
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) {
    const typename Dot::Acc first = start(r);
#pragma GCC unroll 8
    for (int s = 0; s < kStreams; s++) held[r][s] = first;
  }
  Fours<kRows> units(x + begin * Dot::kUnit, x_stride);
  for (int64_t i = begin; i < end; i++) {
#pragma GCC unroll 8
    for (int s = 0; s < kStreams; s++) ahead.ask(weight[s]);
    ahead.go_on();
#pragma GCC unroll 2
    for (int turn = 0; turn < Dot::kTurns; turn++) {
      typename Dot::Right right[kStreams];
#pragma GCC unroll 8
      for (int s = 0; s < kStreams; s++) right[s] = Dot::take(weight[s] + i * 64, turn);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 8
        for (int s = 0; s < kStreams; s++) Dot::step(held[r][s], right[s], units.row(r), turn);
      }
    }
    units.advance(Dot::kUnit);
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 8
    for (int s = 0; s < kStreams; s++) acc[r][s] = held[r][s];
  }
}

// So many registers hold sums; the others what is multiplied.
constexpr int kHeld = kLanes == 8 ? 12 : 16, kMostRows = 8;

// The most rows that are multiplied at once with so many streams.
template <typename Dot, int kStreams>
constexpr int most_rows() {
  constexpr int kHere = kHeld / (Dot::kSumRegisters * kStreams);
  return kHere < kMostRows ? kHere : kMostRows;
}

}  // namespace tg::TG_ISA
