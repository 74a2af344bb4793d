// The likeliest token of a stretch of logits.
#pragma once

#include "rows.h"

namespace tg::TG_ISA {

struct Best {
  float top, total;  // the largest, and the sum of exp(x - top)
  int64_t token;
};

// The first of the largest of `count` numbers; a NaN is larger than any, as torch has it.
template <typename T>
TG_INLINE Best best_of(const T *x, int64_t first, int64_t count) {
  const float never = -__builtin_inff();
  const auto numbers = [&](int64_t i, int lanes) {
    const Vec v = load_lanes(x + first + i, lanes);
    return lanes == kLanes || lane_index() < lanes ? v : splat(never);
  };
  Vec top = splat(never);
  IVec at = {}, broken = {};  // where a lane's largest was first
  by_vector(0, count, [&](int64_t i, int lanes) {
    const Vec v = numbers(i, lanes);
    const IVec larger = v > top;
    top = larger != 0 ? v : top;
    at = larger != 0 ? lane_index() + static_cast<int32_t>(i) : at;
    broken |= v != v;
  });
  if (sum(broken) != 0) {
    for (int64_t i = 0; i < count; i++) {
      if (to_float(x[first + i]) != to_float(x[first + i])) return {__builtin_nanf(""), __builtin_nanf(""), first + i};
    }
  }
  Best best = {largest(top), 0, first};
  if (best.top == never) return best;
  int64_t earliest = count;
  for (int lane = 0; lane < kLanes; lane++) {
    if (top[lane] == best.top) earliest = least(earliest, at[lane]);
  }
  best.token = first + earliest;
  Vec total = {};
  by_vector(0, count, [&](int64_t i, int lanes) { total += exp(numbers(i, lanes) - best.top); });
  best.total = sum(total);
  return best;
}

// Numbers from the i-th on, and minus infinity where their bits are 0: whole 4 bytes of bits, the lowest first. i is a multiple of
// kLanes.
template <typename T>
TG_INLINE Vec load_allowed(const T *x, const char *mask, int64_t i, int lanes) {
  uint32_t word;
  memcpy(&word, mask + i / 32 * 4, sizeof word);
  const IVec set = (static_cast<int32_t>(word >> (i % 32)) >> lane_index()) & 1;
  return (set != 0) & (lane_index() < lanes) ? load_lanes(x + i, lanes) : splat(-__builtin_inff());
}

}  // namespace tg::TG_ISA
