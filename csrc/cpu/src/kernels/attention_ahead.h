// Asking for the keys and values of what comes next while there is something to do, so that memory is never idle.
#pragma once

#include "attention.h"

namespace tg::TG_ISA {

static_assert(kUnit == kFewUnit);

// A unit's rows of the cache.
struct CacheUnit {
  int64_t rows[kFewUnit], count = 0;

  void find(const Task &task, int64_t unit, Rows &walk) {
    count = least(kFewUnit, task.end - task.begin - unit * kFewUnit);
    for (int64_t i = 0; i < count; i++) rows[i] = walk.next();
  }
};

// Keys or values of a unit's rows, for all heads of the task, that attention comes to one after the other.
struct Stretch {
  enum Part { kKeys, kValues };
  static constexpr int kWhere = kHasFew ? 2 : 3;  // for a whole unit, as few rows ask, the first cache has no room

  const char *from;
  int64_t bytes, stride;  // of a row; from row to row of the cache
  const float *scales;    // of integers
  int64_t scale_stride;
  const int64_t *row, *end;

  // first, last: of the unit's rows, which may be fewer.
  Stretch(const Attention &form, const Task &task, const CacheUnit &unit, Part part, int64_t first = 0, int64_t last = kFewUnit) {
    const bool keys = part == kKeys;
    const int64_t size = form.cached_bytes();
    const int64_t dim = keys ? form.head_dim : form.value_dim;
    from = (keys ? form.keys : form.values) + task.kv_head * dim * size;
    bytes = task.heads * dim * size;
    stride = (keys ? form.key_stride : form.value_stride) * size;
    scales = size == 1 ? (keys ? form.key_scales : form.value_scales) + task.kv_head : nullptr;
    scale_stride = form.kv_heads;
    row = unit.rows + least(first, unit.count);
    end = unit.rows + least(last, unit.count);
  }
  int64_t count() const { return end - row; }
  // Asks for the next row.
  TG_INLINE void ask() {
    const char *numbers = from + *row * stride;
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(numbers + at, 0, kWhere);
    if (scales != nullptr) __builtin_prefetch(scales + *row * scale_stride, 0, kWhere);
    row++;
  }
};

// Asks for two stretches, row by row, so that memory is busy while there is something to do.
class CacheAhead {
 public:
  // calls: how often `ask` will be called, at least, or how many calls it is told that it stands for.
  CacheAhead(const Stretch &first, const Stretch &second, int64_t calls)
      : now_(first), then_(second), rate_(ceil_div((first.count() + second.count()) * kOne, calls)) {}
  TG_INLINE void ask(int64_t calls = 1) {
    for (credit_ += calls * rate_; credit_ >= kOne; credit_ -= kOne) {
      if (now_.row == now_.end && !turn()) return;
      now_.ask();
    }
  }

 private:
  static constexpr int64_t kOne = 256;

  // On to the second stretch, and from that to nothing.
  bool turn() {
    now_ = then_;
    then_.row = then_.end;
    if (now_.count() == 0) rate_ = credit_ = 0;
    return now_.count() > 0;
  }

  Stretch now_, then_;
  int64_t rate_, credit_ = 0;  // rows that may be asked for at each call, and now
};

}  // namespace tg::TG_ISA
