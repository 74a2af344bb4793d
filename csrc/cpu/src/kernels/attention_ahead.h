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

// Asks for the keys and values of a unit's heads, row by row, so that memory is busy while there is something to do.
class CacheAhead {
 public:
  enum Parts { kKeys, kValues, kBoth };

  // calls: how often `ask` will be called, at least, or how many calls it is told that it stands for.
  CacheAhead(const Attention &form, const Task &task, const CacheUnit &unit, Parts parts, int64_t calls)
      : begin_(unit.rows), row_(unit.rows), end_(unit.rows + unit.count),
        rate_(ceil_div((parts == kBoth ? 2 : 1) * unit.count * kOne, calls)) {
    const int64_t size = form.cache_dtype == TG_I8 ? 1 : form.cache_dtype == TG_F32 ? 4 : 2;
    scale_stride_ = form.kv_heads;
    now_ = {form.keys + task.kv_head * form.head_dim * size, task.heads * form.head_dim * size, form.key_stride * size,
            size == 1 ? form.key_scales + task.kv_head : nullptr};
    const Part values = {form.values + task.kv_head * form.value_dim * size, task.heads * form.value_dim * size,
                         form.value_stride * size, size == 1 ? form.value_scales + task.kv_head : nullptr};
    if (parts == kValues) now_ = values;
    if (parts == kBoth) then_ = values;
  }
  TG_INLINE void ask(int64_t calls = 1) {
    for (credit_ += calls * rate_; credit_ >= kOne; credit_ -= kOne) {
      if (row_ == end_ && !turn()) return;
      const int64_t row = *row_++;
      const char *from = now_.from + row * now_.stride;
      for (int64_t at = 0; at < now_.bytes; at += 64) __builtin_prefetch(from + at, 0, 2);
      if (now_.scales != nullptr) __builtin_prefetch(now_.scales + row * scale_stride_, 0, 2);
    }
  }

 private:
  static constexpr int64_t kOne = 256;
  struct Part {
    const char *from;
    int64_t bytes, stride;
    const float *scales;  // of integers
  };

  // From keys to values, and from these to nothing.
  bool turn() {
    if (then_.from == nullptr) {
      rate_ = credit_ = 0;
      return false;
    }
    row_ = begin_, now_ = then_, then_.from = nullptr;
    return row_ < end_;
  }

  const int64_t *begin_, *row_, *end_;
  Part now_, then_ = {};
  int64_t scale_stride_;
  int64_t rate_, credit_ = 0;  // rows that may be asked for at each call, and now
};

}  // namespace tg::TG_ISA
