// Products with weights of four to six bits, in groups of inputs with a scale each: int4, MXFP4 and the blocks of GGUF files.
//
// Eight inputs of sixteen outputs are unpacked to bytes in registers, once for all rows that are multiplied together.
#include "linear.h"

namespace tg::TG_ISA {
namespace {

// Units are the same four inputs of 16 outputs, a byte each, below 64. Small multiplies them by four bytes of x, which `spread`
// reads; sums may stay narrow for some steps, then `flush` is called.
#if defined(__AVX512F__)
struct Units {
  __m512i bytes;
};
struct Small {
  static constexpr bool kInRegisters = true;
  struct Acc {
    __m512i sum;
  };
  TG_INLINE static Acc start(int32_t first) { return {_mm512_set1_epi32(first)}; }
  TG_INLINE static __m512i spread(const char *x) {
    int32_t four;
    memcpy(&four, x, 4);
    return _mm512_set1_epi32(four);
  }
  TG_INLINE static void step(Acc &acc, const Units &units, __m512i four) {
    acc.sum = add_bytes(acc.sum, units.bytes, four);
  }
  TG_INLINE static void flush(Acc &) {}
  TG_INLINE static void finish(const Acc &acc, Vec *sums) { sums[0] = _mm512_cvtepi32_ps(acc.sum); }
};
TG_INLINE void nibbles(const uint8_t *from, Units &low, Units &high) {
  const __m512i both = _mm512_loadu_si512(from), mask = _mm512_set1_epi8(15);
  low.bytes = _mm512_and_si512(both, mask);
  high.bytes = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
}
// The number that stands for each byte below 16.
TG_INLINE void look_up(const uint8_t *table, Units &units) {
  const __m128i numbers = _mm_loadu_si128(reinterpret_cast<const __m128i *>(table));
  units.bytes = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(numbers), units.bytes);
}
// A bit of each byte, worth 16: byte after byte.
TG_INLINE void add_bits(const uint8_t *from, Units &units) {
  uint64_t bits;
  memcpy(&bits, from, 8);
  units.bytes = _mm512_mask_add_epi8(units.bytes, bits, units.bytes, _mm512_set1_epi8(16));
}
// Two bits of each byte, worth 16 and 32: a byte has those of 4 that are 16 apart.
TG_INLINE void add_pairs(const uint8_t *from, Units &units) {
  const __m512i four = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
  const __m512i turns = _mm512_setr_epi32(4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0, 30, 30, 30, 30);
  const __m512i bits = _mm512_and_si512(_mm512_rolv_epi32(four, turns), _mm512_set1_epi8(0x30));
  units.bytes = _mm512_or_si512(units.bytes, bits);
}
#elif defined(__AVX2__)
struct Units {
  __m256i half[2];
};
struct Small {
  static constexpr bool kInRegisters = true;
  struct Acc {
    __m256i narrow[2];  // of 16 bits: sums of two products
    __m256i sum[2];
  };
  TG_INLINE static Acc start(int32_t first) {
    const __m256i zero = _mm256_setzero_si256(), each = _mm256_set1_epi32(first);
    return {{zero, zero}, {each, each}};
  }
  TG_INLINE static const char *spread(const char *x) { return x; }
  // The instructions themselves, as in add_products.
  TG_INLINE static void step(Acc &acc, const Units &units, const char *x) {
    __m256i four, products;
    asm("vpbroadcastd %4, %2\n\tvpmaddubsw %2, %6, %3\n\tvpmaddubsw %2, %5, %2\n\tvpaddw %2, %0, %0\n\tvpaddw %3, %1, %1"
        : "+x"(acc.narrow[0]), "+x"(acc.narrow[1]), "=&x"(four), "=&x"(products)
        : "m"(*reinterpret_cast<const char(*)[4]>(x)), "x"(units.half[0]), "x"(units.half[1]));
  }
  TG_INLINE static void flush(Acc &acc) {
    for (int h = 0; h < 2; h++) {
      acc.sum[h] = _mm256_add_epi32(acc.sum[h], _mm256_madd_epi16(acc.narrow[h], _mm256_set1_epi16(1)));
      acc.narrow[h] = _mm256_setzero_si256();
    }
  }
  TG_INLINE static void finish(const Acc &acc, Vec *sums) {
    for (int h = 0; h < 2; h++) sums[h] = _mm256_cvtepi32_ps(acc.sum[h]);
  }
};
TG_INLINE void nibbles(const uint8_t *from, Units &low, Units &high) {
  const __m256i mask = _mm256_set1_epi8(15);
  for (int h = 0; h < 2; h++) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from + h * 32));
    low.half[h] = _mm256_and_si256(both, mask);
    high.half[h] = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
  }
}
TG_INLINE void look_up(const uint8_t *table, Units &units) {
  const __m256i numbers = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(table)));
  for (int h = 0; h < 2; h++) units.half[h] = _mm256_shuffle_epi8(numbers, units.half[h]);
}
TG_INLINE void add_bits(const uint8_t *from, Units &units) {
  const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  for (int h = 0; h < 2; h++) {
    int32_t bits;
    memcpy(&bits, from + h * 4, 4);
    const __m256i chosen = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), spread), bit);
    const __m256i set = _mm256_and_si256(_mm256_cmpeq_epi8(chosen, bit), _mm256_set1_epi8(16));
    units.half[h] = _mm256_or_si256(units.half[h], set);
  }
}
TG_INLINE void add_pairs(const uint8_t *from, Units &units) {
  const __m256i two = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
  const __m256i mask = _mm256_set1_epi8(0x30);
  const __m256i first = _mm256_sllv_epi32(two, _mm256_setr_epi32(4, 4, 4, 4, 2, 2, 2, 2));
  const __m256i second = _mm256_srlv_epi32(two, _mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2));
  units.half[0] = _mm256_or_si256(units.half[0], _mm256_and_si256(first, mask));
  units.half[1] = _mm256_or_si256(units.half[1], _mm256_and_si256(second, mask));
}
#elif defined(__ARM_FEATURE_DOTPROD)
struct Units {
  uint8x16_t part[4];
};
struct Small {
  static constexpr bool kInRegisters = true;
  struct Acc {
    int32x4_t part[kParts];
  };
  TG_INLINE static Acc start(int32_t first) {
    const int32x4_t each = vdupq_n_s32(first);
    return {{each, each, each, each}};
  }
  TG_INLINE static int8x8_t spread(const char *x) {
    return vreinterpret_s8_s32(vld1_lane_s32(reinterpret_cast<const int32_t *>(x), vdup_n_s32(0), 0));
  }
  TG_INLINE static void step(Acc &acc, const Units &units, int8x8_t four) {
    for (int part = 0; part < 4; part++) {
      acc.part[part] = vdotq_lane_s32(acc.part[part], vreinterpretq_s8_u8(units.part[part]), four, 0);
    }
  }
  TG_INLINE static void flush(Acc &) {}
  TG_INLINE static void finish(const Acc &acc, Vec *sums) {
    for (int part = 0; part < kParts; part++) sums[part] = vcvtq_f32_s32(acc.part[part]);
  }
};
TG_INLINE void nibbles(const uint8_t *from, Units &low, Units &high) {
  for (int part = 0; part < 4; part++) {
    const uint8x16_t both = vld1q_u8(from + part * 16);
    low.part[part] = vandq_u8(both, vdupq_n_u8(15));
    high.part[part] = vshrq_n_u8(both, 4);
  }
}
TG_INLINE void look_up(const uint8_t *table, Units &units) {
  const uint8x16_t numbers = vld1q_u8(table);
  for (int part = 0; part < 4; part++) units.part[part] = vqtbl1q_u8(numbers, units.part[part]);
}
TG_INLINE void add_bits(const uint8_t *from, Units &units) {
  static constexpr uint8_t kBit[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint8x16_t bit = vld1q_u8(kBit);
  for (int part = 0; part < 4; part++) {
    const uint8x16_t bytes = vcombine_u8(vdup_n_u8(from[part * 2]), vdup_n_u8(from[part * 2 + 1]));
    units.part[part] = vorrq_u8(units.part[part], vandq_u8(vtstq_u8(bytes, bit), vdupq_n_u8(16)));
  }
}
TG_INLINE void add_pairs(const uint8_t *from, Units &units) {
  const uint8x16_t four = vld1q_u8(from);
  for (int part = 0; part < 4; part++) {
    const uint8x16_t moved = vshlq_u8(four, vdupq_n_s8(static_cast<int8_t>(4 - part * 2)));
    units.part[part] = vorrq_u8(units.part[part], vandq_u8(moved, vdupq_n_u8(0x30)));
  }
}
#else
struct Units {
  uint8_t bytes[kPanel * 4];
};
struct Small {
  static constexpr bool kInRegisters = false;
  struct Acc {
    int32_t sum[kPanel];
  };
  TG_INLINE static Acc start(int32_t first) {
    Acc acc;
    for (int o = 0; o < kPanel; o++) acc.sum[o] = first;
    return acc;
  }
  TG_INLINE static const char *spread(const char *x) { return x; }
  TG_INLINE static void step(Acc &acc, const Units &units, const char *x) {
    for (int o = 0; o < kPanel; o++) {
      for (int i = 0; i < 4; i++) acc.sum[o] += units.bytes[o * 4 + i] * static_cast<int8_t>(x[i]);
    }
  }
  TG_INLINE static void flush(Acc &) {}
  TG_INLINE static void finish(const Acc &acc, Vec *sums) {
    for (int o = 0; o < kPanel; o++) sums[o / kLanes][o % kLanes] = static_cast<float>(acc.sum[o]);
  }
};
TG_INLINE void nibbles(const uint8_t *from, Units &low, Units &high) {
  for (int i = 0; i < kPanel * 4; i++) {
    low.bytes[i] = from[i] & 15;
    high.bytes[i] = from[i] >> 4;
  }
}
TG_INLINE void look_up(const uint8_t *table, Units &units) {
  for (int i = 0; i < kPanel * 4; i++) units.bytes[i] = table[units.bytes[i]];
}
TG_INLINE void add_bits(const uint8_t *from, Units &units) {
  for (int i = 0; i < kPanel * 4; i++) units.bytes[i] |= (from[i / 8] >> (i % 8) & 1) << 4;
}
TG_INLINE void add_pairs(const uint8_t *from, Units &units) {
  for (int i = 0; i < kPanel * 4; i++) units.bytes[i] |= (from[i % 16] >> (i / 16 * 2) & 3) << 4;
}
#endif

constexpr int64_t kPairBytes = 64;  // of eight inputs' nibbles

// A byte for each output, as floats. The compiler's own conversion takes byte after byte.
template <bool kSigned>
TG_INLINE void load_bytes(const uint8_t *from, Vec *to) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
  to[0] = _mm512_cvtepi32_ps(kSigned ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes));
#elif defined(__AVX2__)
  for (int part = 0; part < 2; part++) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(from + part * 8));
    to[part] = _mm256_cvtepi32_ps(kSigned ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
  }
#elif defined(__ARM_NEON)
  if constexpr (kSigned) {
    for (int part = 0; part < kParts; part++) to[part] = load(reinterpret_cast<const int8_t *>(from) + part * kLanes);
  } else {
    const uint8x16_t bytes = vld1q_u8(from);
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_u8(vget_high_u8(bytes));
    to[0] = vcvtq_f32_u32(vmovl_u16(vget_low_u16(low)));
    to[1] = vcvtq_f32_u32(vmovl_u16(vget_high_u16(low)));
    to[2] = vcvtq_f32_u32(vmovl_u16(vget_low_u16(high)));
    to[3] = vcvtq_f32_u32(vmovl_u16(vget_high_u16(high)));
  }
#else
  for (int o = 0; o < kPanel; o++) {
    to[o / kLanes][o % kLanes] = kSigned ? static_cast<float>(static_cast<int8_t>(from[o])) : static_cast<float>(from[o]);
  }
#endif
}

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
