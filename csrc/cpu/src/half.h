// Numbers of 16 bits as IEEE 754 has them, one at a time.
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernel.h"

namespace tg {

// To the nearest, ties to even; beyond the range infinite; a NaN stays one.
TG_INLINE uint16_t f16_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t size = bits & 0x7fffffff;
  if (size > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (size >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (size < 0x38800000) {  // below the smallest normal: a multiple of 2^-24
    float units;
    memcpy(&units, &size, sizeof units);
    units += 0.5f;  // the last bit of 0.5's fraction is 2^-24
    memcpy(&bits, &units, sizeof bits);
    return static_cast<uint16_t>(sign | (bits - 0x3f000000));
  }
  return static_cast<uint16_t>(sign | ((size + 0xfff + ((size >> 13) & 1) - 0x38000000) >> 13));
}

TG_INLINE float float_of_f16(uint16_t half) {
  // The fraction and exponent, moved to where float32 has them, are 2^-112 of the number, subnormal ones too.
  const uint32_t moved = static_cast<uint32_t>(half & 0x7fff) << 13;
  float x;
  memcpy(&x, &moved, sizeof x);
  x *= 5.192296858534828e33f;
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits |= static_cast<uint32_t>(half & 0x8000) << 16;
  if ((half & 0x7c00) == 0x7c00) bits |= 0x7f800000;  // infinite, or none
  memcpy(&x, &bits, sizeof x);
  return x;
}

}  // namespace tg
