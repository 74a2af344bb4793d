// Numbers become integers while they are packed: the same integers and scales as `textgen/quantization/integers.py` makes.
#pragma once

#include <stdint.h>

namespace tg {

// Integers from -127 to 127 of a row, and its scale.
void quantize8(const float *x, int64_t ins, int8_t *to, float *scale);

// Integers from -8 to 7 of a row, and a scale that float16 has for each group, of at most 128 inputs and a multiple of 8: of a few scales the one with
// which the sum of squared errors is least.
void quantize4(const float *x, int64_t ins, int64_t group, int8_t *to, float *scales);

}  // namespace tg
