// Bytes that linear_small.cpp unpacks weights to and multiplies, on each instruction set.
#pragma once
#include "linear.h"

namespace tg::TG_ISA {

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
#if defined(TG_AVX_VNNI)
struct Small {
  static constexpr bool kInRegisters = true;
  struct Acc {
    Vec part[kParts];  // the bits of integers
  };
  TG_INLINE static Acc start(int32_t first) {
    const Vec each = cast<Vec>(_mm256_set1_epi32(first));
    return {each, each};
  }
  TG_INLINE static const char *spread(const char *x) { return x; }
  TG_INLINE static void step(Acc &acc, const Units &units, const char *x) {
    add_bytes(acc.part[0], acc.part[1], x, cast<Vec>(units.half[0]), cast<Vec>(units.half[1]));
  }
  TG_INLINE static void flush(Acc &) {}
  TG_INLINE static void finish(const Acc &acc, Vec *sums) {
    for (int part = 0; part < kParts; part++) sums[part] = _mm256_cvtepi32_ps(cast<__m256i>(acc.part[part]));
  }
};
#else
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
#endif
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

}  // namespace tg::TG_ISA
