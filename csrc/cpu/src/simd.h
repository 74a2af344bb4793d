// A vector of floats of the instruction set that is compiled for, so that an elementwise kernel is written once.
//
// `Vec` is a vector of the compiler (GCC, Clang): + - * / and comparisons work on it, and a condition ? a : b chooses by lane.
#pragma once

#include <math.h>
#include <string.h>

#include "half.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace tg::TG_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int kRegisters = 32;
#else
constexpr int kRegisters = 16;
#endif

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t IVec __attribute__((vector_size(kLanes * 4)));  // also what a comparison of two Vec gives
typedef uint32_t UVec __attribute__((vector_size(kLanes * 4)));
typedef uint16_t HVec __attribute__((vector_size(kLanes * 2)));
typedef int16_t SVec __attribute__((vector_size(kLanes * 2)));
typedef int8_t BVec __attribute__((vector_size(kLanes)));

// A bfloat16 in memory.
struct Bf16 {
  uint16_t bits;
};

template <typename To, typename From>
TG_INLINE To cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// A float16 in memory.
struct Half {
  uint16_t bits;
};

TG_INLINE float to_float(float x) { return x; }
TG_INLINE float to_float(Half x) { return float_of_f16(x.bits); }
TG_INLINE float to_float(Bf16 x) { return cast<float>(static_cast<uint32_t>(x.bits) << 16); }

// Rounds to the nearest, ties to even; a NaN stays one.
TG_INLINE uint16_t bf16_bits(float x) {
  const uint32_t bits = cast<uint32_t>(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
TG_INLINE void put(float *to, float x) { *to = x; }
TG_INLINE void put(Bf16 *to, float x) { to->bits = bf16_bits(x); }
TG_INLINE void put(Half *to, float x) { to->bits = f16_of(x); }
// x as it is once stored as T.
template <typename T>
TG_INLINE float rounded(float x) {
  T stored;
  put(&stored, x);
  return to_float(stored);
}

TG_INLINE Vec splat(float x) { return x - Vec{}; }

TG_INLINE Vec load(const float *from) {
  Vec v;
  memcpy(&v, from, sizeof v);
  return v;
}
// GCC makes several instructions, and of bytes one for each lane, of conversions between vectors that the processor has one for.
TG_INLINE Vec load(const Bf16 *from) {
#if defined(__AVX512F__)
  const UVec bits = (UVec)_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
#elif defined(__AVX2__)
  const UVec bits = (UVec)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
#else
  HVec h;
  memcpy(&h, from, sizeof h);
  const UVec bits = __builtin_convertvector(h, UVec);
#endif
  return cast<Vec>(bits << 16);
}
TG_INLINE Vec load(const Half *from) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
#elif defined(__AVX2__)
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
#elif defined(__ARM_NEON)
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&from->bits)));
#else
  Vec v;
  for (int i = 0; i < kLanes; i++) v[i] = to_float(from[i]);
  return v;
#endif
}
TG_INLINE Vec load(const int8_t *from) {
#if defined(__AVX512F__)
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from))));
#elif defined(__AVX2__)
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(from))));
#elif defined(__ARM_NEON)
  int32_t four;
  memcpy(&four, from, sizeof four);
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four))))));
#else
  BVec bytes;
  memcpy(&bytes, from, sizeof bytes);
  return __builtin_convertvector(__builtin_convertvector(bytes, IVec), Vec);
#endif
}
TG_INLINE void store(float *to, Vec v) { memcpy(to, &v, sizeof v); }
// Numbers of 16 bits, signed or not, and of a byte; of others something.
TG_INLINE SVec to_shorts(IVec v) {
#if defined(__AVX512F__)
  return (SVec)_mm512_cvtepi32_epi16((__m512i)v);
#elif defined(__AVX2__)
  return (SVec)_mm_packs_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
#else
  return __builtin_convertvector(v, SVec);
#endif
}
TG_INLINE HVec to_shorts(UVec v) {
#if defined(__AVX512F__)
  return (HVec)_mm512_cvtepi32_epi16((__m512i)v);
#elif defined(__AVX2__)
  return (HVec)_mm_packus_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
#else
  return __builtin_convertvector(v, HVec);
#endif
}
TG_INLINE BVec to_bytes(IVec v) {
#if defined(__AVX512F__)
  return (BVec)_mm512_cvtepi32_epi8((__m512i)v);
#elif defined(__AVX2__)
  const __m128i shorts = (__m128i)to_shorts(v);
  return cast<BVec>(_mm_cvtsi128_si64(_mm_packs_epi16(shorts, shorts)));
#elif defined(__ARM_NEON)
  const int16x4_t shorts = vmovn_s32(v);
  return cast<BVec>(vget_lane_s32(vreinterpret_s32_s8(vmovn_s16(vcombine_s16(shorts, shorts))), 0));
#else
  return __builtin_convertvector(v, BVec);
#endif
}
// Whole numbers from -127 to 127; another is one of them, whichever.
TG_INLINE void store(int8_t *to, Vec v) {
  const BVec bytes = to_bytes(__builtin_convertvector(v, IVec));
  memcpy(to, &bytes, sizeof bytes);
}
TG_INLINE HVec to_bf16(Vec v) {
#if defined(__AVX512BF16__)
  return cast<HVec>(_mm512_cvtneps_pbh(v));
#else
  const UVec bits = cast<UVec>(v);
  const UVec even = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return to_shorts(v == v ? even : (bits >> 16) | 0x40);
#endif
}
TG_INLINE void store(Bf16 *to, Vec v) {
  const HVec h = to_bf16(v);
  memcpy(to, &h, sizeof h);
}
TG_INLINE void store(Half *to, Vec v) {
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
  _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__ARM_NEON)
  vst1_u16(&to->bits, vreinterpret_u16_f16(vcvt_f16_f32(v)));
#else
  for (int i = 0; i < kLanes; i++) put(to + i, v[i]);
#endif
}
// The first `count` numbers, fewer than kLanes; the others are 0 and are not read.
template <typename T>
TG_INLINE Vec load_part(const T *from, int64_t count) {
  T part[kLanes] = {};
  for (int64_t i = 0; i < count; i++) part[i] = from[i];
  return load(part);
}
template <typename T>
TG_INLINE void store_part(T *to, Vec v, int64_t count) {
  T part[kLanes];
  store(part, v);
  for (int64_t i = 0; i < count; i++) to[i] = part[i];
}
template <typename T>
TG_INLINE Vec load_lanes(const T *from, int lanes) {
  return lanes == kLanes ? load(from) : load_part(from, lanes);
}
template <typename T>
TG_INLINE void store_lanes(T *to, Vec v, int lanes) {
  if (lanes == kLanes) {
    store(to, v);
  } else {
    store_part(to, v, lanes);
  }
}

// a * b + c
TG_INLINE Vec fma(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_NEON)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}
// sum += a * b. With sixteen registers the instruction itself: GCC might put the sum where a factor was, and needs a register more.
TG_INLINE void add_product(Vec &sum, Vec a, Vec b) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
#else
  sum = fma(a, b, sum);
#endif
}
// a += x * right, b += x * beside. With sixteen registers the instructions themselves: GCC reads the numbers of all rows of a block
// first, and has no registers left for the sums.
TG_INLINE void add_products(Vec &a, Vec &b, const float *x, Vec right, Vec beside) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  Vec unit;
  asm("vbroadcastss %3, %2\n\tvfmadd231ps %4, %2, %0\n\tvfmadd231ps %5, %2, %1"
      : "+x"(a), "+x"(b), "=&x"(unit)
      : "m"(*x), "x"(right), "x"(beside));
#else
  a = fma(splat(*x), right, a);
  b = fma(splat(*x), beside, b);
#endif
}
TG_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
TG_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }
TG_INLINE Vec abs(Vec a) { return cast<Vec>(cast<UVec>(a) & 0x7fffffff); }
TG_INLINE Vec sqrt(Vec a) {
#if defined(__AVX512F__)
  return _mm512_sqrt_ps(a);
#elif defined(__AVX2__)
  return _mm256_sqrt_ps(a);
#elif defined(__ARM_NEON)
  return vsqrtq_f32(a);
#else
  for (int i = 0; i < kLanes; i++) a[i] = __builtin_sqrtf(a[i]);
  return a;
#endif
}
// The nearest whole numbers, ties to even; |a| < 2^22.
TG_INLINE IVec nearest(Vec a) {
#if defined(__AVX512F__)
  return (IVec)_mm512_cvtps_epi32(a);
#elif defined(__AVX2__)
  return (IVec)_mm256_cvtps_epi32(a);
#elif defined(__ARM_NEON)
  return (IVec)vcvtnq_s32_f32(a);
#else
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23
  return __builtin_convertvector((a + magic) - magic, IVec);
#endif
}
// The same as floats.
TG_INLINE Vec round(Vec a) {
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23
  return (a + magic) - magic;
}

// e^a, within 2 units in the last place; 0 below -87.3, infinite above 88.7.
TG_INLINE Vec exp(Vec a) {
#if defined(__AVX512F__)
  const Vec x = _mm512_min_ps(splat(89.0f), a);  // of two, the second where one is a NaN
  const Vec n = _mm512_roundscale_ps(x * 1.44269504088896341f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const Vec x = max(min(a, splat(89.0f)), splat(-88.0f));
  const Vec n = round(x * 1.44269504088896341f);
#endif
  Vec r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  Vec p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r + 1.0f);
#if defined(__AVX512F__)
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(a, splat(-87.33f), _CMP_NLT_UQ), p, n);
#else
  // In two factors, so that neither leaves the range of exponents.
  const IVec whole = __builtin_convertvector(n, IVec);
  const IVec half = whole >> 1;
  const Vec y = p * cast<Vec>((half + 127) << 23) * cast<Vec>((whole - half + 127) << 23);
  return a < -87.33f ? Vec{} : (a != a ? a : y);
#endif
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// All lanes together, in three steps; the compiler would take them one by one.
template <typename F>
TG_INLINE float folded_to_one(Vec a, const F &f) {
  const __m128 half = f(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 pair = f(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(f(pair, _mm_movehdup_ps(pair)));
}
#endif

TG_INLINE float sum(Vec a) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(a);
#elif defined(__AVX2__)
  return folded_to_one(a, [](__m128 x, __m128 y) { return _mm_add_ps(x, y); });
#else
  float total = 0;
  for (int i = 0; i < kLanes; i++) total += a[i];
  return total;
#endif
}
TG_INLINE int32_t sum(IVec a) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_epi32((__m512i)a);
#elif defined(__AVX2__)
  const __m128i half = _mm_add_epi32(_mm256_castsi256_si128((__m256i)a), _mm256_extracti128_si256((__m256i)a, 1));
  const __m128i pair = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(pair, _mm_shuffle_epi32(pair, 0xb1)));
#else
  int32_t total = 0;
  for (int i = 0; i < kLanes; i++) total += a[i];
  return total;
#endif
}
TG_INLINE int32_t largest(IVec a) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_epi32((__m512i)a);
#elif defined(__AVX2__)
  const __m128i half = _mm_max_epi32(_mm256_castsi256_si128((__m256i)a), _mm256_extracti128_si256((__m256i)a, 1));
  const __m128i pair = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(pair, _mm_shuffle_epi32(pair, 0xb1)));
#else
  int32_t top = a[0];
  for (int i = 1; i < kLanes; i++) top = a[i] > top ? a[i] : top;
  return top;
#endif
}
TG_INLINE float largest(Vec a) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(a);
#elif defined(__AVX2__)
  return folded_to_one(a, [](__m128 x, __m128 y) { return _mm_max_ps(x, y); });
#else
  float top = a[0];
  for (int i = 1; i < kLanes; i++) top = a[i] > top ? a[i] : top;
  return top;
#endif
}

}  // namespace tg::TG_ISA
