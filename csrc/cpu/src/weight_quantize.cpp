#include "weight_quantize.h"

#include "half.h"
#include "kernel.h"

namespace tg {
namespace {

constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: its last bit is 1, so that adding it rounds, ties to even
constexpr int64_t kClipCount = 3;
constexpr float kClips[kClipCount] = {1.0f, 0.9f, 0.8f};  // parts of a group's range
constexpr int64_t kMostGroup = 128;
constexpr int64_t kLanes = 8;  // sums side by side

// The bits of the largest magnitude; those of a NaN are larger than any.
TG_INLINE int32_t largest_of(const float *x, int64_t count) {
  int32_t largest = 0;
  for (int64_t i = 0; i < count; i++) {
    const int32_t size = __builtin_bit_cast(int32_t, x[i]) & 0x7fffffff;
    largest = size > largest ? size : largest;
  }
  return largest;
}

// The first number of the largest magnitude.
TG_INLINE float extreme_of(const float *x, int64_t count) {
  const int32_t above = largest_of(x, count), below = static_cast<int32_t>(above | 0x80000000);
  int32_t positive = 0, negative = 0;
  for (int64_t i = 0; i < count; i++) {
    const int32_t bits = __builtin_bit_cast(int32_t, x[i]);
    positive |= bits == above;
    negative |= bits == below;
  }
  if (positive && negative) {
    int64_t i = 0;
    while (__builtin_bit_cast(int32_t, x[i]) != above && __builtin_bit_cast(int32_t, x[i]) != below) i++;
    return x[i];
  }
  return __builtin_bit_cast(float, positive ? above : below);
}

// The nearest integer of a number below 2^22.
TG_INLINE float nearest(float x) { return (x + kRound) - kRound; }

// The same, as the low bits of what rounding left.
TG_INLINE int8_t integer_of(float x) { return static_cast<int8_t>(__builtin_bit_cast(int32_t, x + kRound)); }

TG_INLINE float in_range4(float x) {
  x = x < -8 ? -8 : x;
  return x > 7 ? 7 : x;
}

TG_INLINE float inverse_of(float scale) { return scale != 0 ? 1 / scale : 0; }

// The sum of squares by which integers with a scale miss a group.
TG_INLINE float missed4(const float *x, int64_t group, float scale) {
  const float inverse = inverse_of(scale);
  float sums[kLanes] = {};
  for (int64_t i = 0; i < group; i += kLanes) {
    for (int64_t k = 0; k < kLanes; k++) {
      const float error = in_range4(nearest(x[i + k] * inverse)) * scale - x[i + k];
      sums[k] += error * error;
    }
  }
  float sum = 0;
  for (int64_t k = 0; k < kLanes; k++) sum += sums[k];
  return sum;
}

TG_INLINE void make4(const float *x, int64_t ins, int64_t group, int8_t *to, float *scales) {
  for (int64_t g = 0; g < ins / group; g++, x += group, to += group) {
    const float extreme = extreme_of(x, group);  // becomes -8, on the side that has one step more
    float best = 0, error = 0;
    for (int64_t k = 0; k < kClipCount; k++) {
      const float scale = float_of_f16(f16_of(extreme * (kClips[k] / -8))), missed = missed4(x, group, scale);
      if (k > 0 && !(missed < error)) continue;
      best = scale;
      error = missed;
    }
    scales[g] = best;
    const float inverse = inverse_of(best);
    float whole[kMostGroup];
    for (int64_t i = 0; i < group; i++) whole[i] = in_range4(x[i] * inverse);
    for (int64_t i = 0; i < group; i++) to[i] = integer_of(whole[i]);
  }
}

#if defined(__x86_64__)
// Twice as many numbers at a time as every processor can.
__attribute__((target("avx2"))) void make4_wide(const float *x, int64_t ins, int64_t group, int8_t *to, float *scales) {
  make4(x, ins, group, to, scales);
}
#endif

}  // namespace

void quantize8(const float *x, int64_t ins, int8_t *to, float *scale) {
  const float largest = __builtin_bit_cast(float, largest_of(x, ins));
  const float inverse = largest > 0 ? 127 / largest : 0;
  for (int64_t i = 0; i < ins; i++) to[i] = integer_of(x[i] * inverse);
  *scale = largest / 127;
}

void quantize4(const float *x, int64_t ins, int64_t group, int8_t *to, float *scales) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return make4_wide(x, ins, group, to, scales);
#endif
  make4(x, ins, group, to, scales);
}

}  // namespace tg
