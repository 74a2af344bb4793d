// Counts that a kernel knows when it is compiled, so that what it counts stays in registers.
#pragma once

#include "kernel.h"

namespace tg::TG_ISA {

template <int n>
struct Count {
  static constexpr int value = n;
};
template <int kMost, typename F>
TG_INLINE void with_count(int64_t count, const F &f) {
  if constexpr (kMost > 1) {
    if (count < kMost) return with_count<kMost - 1>(count, f);
  }
  f(Count<kMost>());
}
// Calls f(Count, first row) for blocks of kMost rows at most and of about as many each: few rows wait for one another's sums.
template <int kMost, typename F>
TG_INLINE void by_blocks(int64_t rows, const F &f) {
  if (rows > 0 && rows <= kMost) return with_count<kMost>(rows, [&](auto count) { f(count, 0); });  // without a division
  const int64_t blocks = ceil_div(rows, kMost);
  for (int64_t i = 0; i < blocks; i++) {
    const Share block = share_of(rows, i, blocks);
    with_count<kMost>(block.end - block.begin, [&](auto count) { f(count, block.begin); });
  }
}

}  // namespace tg::TG_ISA
