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
  const char *address(int64_t at) const { return from + row[at] * stride; }
  TG_INLINE void ask_scales(int64_t at) const {
    if (scales != nullptr) __builtin_prefetch(scales + row[at] * scale_stride, 0, 2);
  }
  // Asks for the next row, into the second cache: where it is the first, attention takes 1.3 to 1.9 times as long on a Zen 4, and
  // as long on a Zen 5.
  TG_INLINE void ask() {
    const char *numbers = from + *row * stride;
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(numbers + at, 0, 2);
    ask_scales(0);
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

// Asks for a whole unit, a line of each of four rows of keys and then of four rows of values, a quarter of the unit apart: in each of
// these eight streams the processor reads on by itself, which it does at full speed only after some pages of one.
class UnitAhead {
 public:
  // calls: how often `ask` will be called, at least, or how many calls it is told that it stands for.
  UnitAhead(const Attention &form, const Task &task, const CacheUnit &unit, int64_t calls)
      : keys_(form, task, unit, Stretch::kKeys),
        values_(form, task, unit, Stretch::kValues),
        rows_(ceil_div(unit.count, kEach)),
        bytes_(most(keys_.bytes, values_.bytes)),
        rate_(ceil_div(2 * rows_ * ceil_div(bytes_, 64) * kOne, calls)) {
    if (rows_ > 0) take();
  }
  TG_INLINE void ask(int64_t calls = 1) {
    for (credit_ += calls * rate_; credit_ >= kOne; credit_ -= kOne) {
#pragma GCC unroll 4
      for (int s = 0; s < kEach; s++) __builtin_prefetch(from_[part_][s] + at_, 0, 2);
      part_ ^= 1;
      if (part_ != 0 || (at_ += 64) < bytes_) continue;
      at_ = 0;
      if (++row_ == rows_) {
        rate_ = credit_ = 0;
        return;
      }
      take();
    }
  }

 private:
  static constexpr int64_t kOne = 256;
  static constexpr int kEach = 4;

  void take() {
    const int64_t last = keys_.count() - 1;
    for (int64_t s = 0; s < kEach; s++) {
      const int64_t at = least(s * rows_ + row_, last);
      from_[0][s] = keys_.address(at), from_[1][s] = values_.address(at);
      keys_.ask_scales(at), values_.ask_scales(at);
    }
  }

  Stretch keys_, values_;
  const char *from_[2][kEach];  // of keys and of values
  int64_t rows_, bytes_, rate_, credit_ = 0, row_ = 0, at_ = 0, part_ = 0;
};

// How often there is asking, at least, while a unit's keys are multiplied and while its values are.
struct Calls {
  int64_t keys, values;
};

// The rows of the unit that comes next: of this task, which `walk` goes through, or of the one that this worker goes on with.
TG_INLINE void find_next(const Attention &form, const Task &task, int64_t unit, int64_t last, const Task *then, Rows &walk,
                         CacheUnit &next) {
  next.count = 0;
  if (unit < last) {
    next.find(task, unit, walk);
  } else if (then != nullptr) {
    Rows other(*form.group, then->segment, then->begin);
    next.find(*then, 0, other);
  }
}

// Bytes of keys or values that are asked for before they are read, where that is row by row. On a Zen 4 attention takes 1.4 times as
// long with 4 KiB, and as long with 8 to 32; on a Zen 5 1.1 times with a whole unit.
constexpr int64_t kLead = 16 * 1024;

// Calls f(rows, position of the first key, with_keys, with_values) for units first to last of a task, where keys and values are read
// row by row. What is read is asked for by `with_keys` and `with_values` before it is: the unit's keys, its values, the next one's
// keys. calls(keys of the unit) says how often. asked: for the first keys, by the task before.
template <typename C, typename F>
TG_INLINE void each_unit(const Attention &form, const Task &task, int64_t first, int64_t last, bool asked, const Task *then,
                         const C &calls, const F &f) {
  Rows walk(*form.group, task.segment, task.begin + first * kUnit);
  CacheUnit units[2];
  units[first & 1].find(task, first, walk);
  const int64_t lead = ceil_div(kLead, task.heads * form.head_dim * form.cached_bytes());
  if (!asked) {
    for (Stretch keys(form, task, units[first & 1], Stretch::kKeys, 0, lead); keys.count() > 0;) keys.ask();
  }
  for (int64_t unit = first; unit < last; unit++) {
    CacheUnit &here = units[unit & 1], &next = units[(unit + 1) & 1];
    find_next(form, task, unit + 1, last, then, walk, next);
    const Task &following = unit + 1 < last || then == nullptr ? task : *then;
    const Stretch keys_left(form, task, here, Stretch::kKeys, lead), values_begun(form, task, here, Stretch::kValues, 0, lead);
    const Stretch values_left(form, task, here, Stretch::kValues, lead), keys_next(form, following, next, Stretch::kKeys, 0, lead);
    const Calls often = calls(here.count);
    CacheAhead with_keys(keys_left, values_begun, often.keys), with_values(values_left, keys_next, often.values);
    f(here, task.begin + unit * kUnit, with_keys, with_values);
  }
}

}  // namespace tg::TG_ISA
