// The likeliest token of each row of logits, and what turns a logit into a log-probability.
#include "rows.h"

namespace tg::TG_ISA {
namespace {

constexpr int64_t kPart = 4096;  // logits that one worker looks at before the next: a vocabulary is wide, rows are few

struct Best {
  float top, total;  // the largest, and the sum of exp(x - top)
  int64_t token;
};

// The first of the largest of `count` numbers; a NaN is larger than any, as torch has it.
template <typename T>
TG_INLINE Best best_of(const T *x, int64_t first, int64_t count) {
  const float never = -__builtin_inff();
  Vec top = splat(never);
  bool broken = false;
  by_vector(0, count, [&](int64_t i, int lanes) {
    const Vec v = lane_index() < lanes ? load_lanes(x + first + i, lanes) : splat(never);
    top = max(v, top);
    const IVec wrong = v != v;
    for (int lane = 0; lane < kLanes; lane++) broken |= wrong[lane] != 0;
  });
  Best best = {largest(top), 0, first};
  if (broken) {
    for (int64_t i = 0; i < count; i++) {
      if (to_float(x[first + i]) != to_float(x[first + i])) return {__builtin_nanf(""), __builtin_nanf(""), first + i};
    }
  }
  if (best.top == never) return best;
  Vec total = {};
  bool found = false;
  by_vector(0, count, [&](int64_t i, int lanes) {
    const Vec v = lane_index() < lanes ? load_lanes(x + first + i, lanes) : splat(never);
    total += exp(v - best.top);
    if (found) return;
    const IVec equal = v == best.top;
    for (int lane = 0; lane < kLanes && !found; lane++) {
      if (equal[lane] != 0) best.token = first + i + lane, found = true;
    }
  });
  best.total = sum(total);
  return best;
}

TG_INLINE Best later(const Best &a, const Best &b) {
  if (a.top != a.top || b.top == -__builtin_inff()) return a;
  if (b.top != b.top || a.top == -__builtin_inff()) return b;
  const Best &best = b.top > a.top ? b : a;
  const float total = a.total * expf(a.top - best.top) + b.total * expf(b.top - best.top);
  return {best.top, total, best.token};
}

int64_t parts_of(int64_t width) { return ceil_div(width, kPart); }

void argmax_run(const tg_op &op, const Run &run) {
  const int64_t x = op.args[TG_ARGMAX_X], width = run.buffer(x).width, rows = run.rows(x), parts = parts_of(width);
  Best *found = reinterpret_cast<Best *>(run.shared);
  const Share share = run.share(rows * parts);
  by_dtype(run.buffer(x).dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    for (int64_t i = share.begin; i < share.end; i++) {
      const int64_t first = i % parts * kPart;
      found[i] = best_of(run.row<T>(x, i / parts), first, least(kPart, width - first));
    }
  });
  run.barrier();
  const Share mine = run.share(rows);
  int64_t *tokens = address<int64_t>(op.args[TG_ARGMAX_TOKENS]);
  float *normaliser = address<float>(op.args[TG_ARGMAX_NORMALISER]);
  for (int64_t row = mine.begin; row < mine.end; row++) {
    Best best = found[row * parts];
    for (int64_t part = 1; part < parts; part++) best = later(best, found[row * parts + part]);
    tokens[row] = best.token;
    if (normaliser != nullptr) normaliser[row] = best.top + logf(best.total);
  }
}

const char *argmax_check(const tg_op &op, const Shape &shape) {
  if (!shape.is_float(op.args[TG_ARGMAX_X])) return "argmax: x is no buffer of float32 or bfloat16";
  return op.args[TG_ARGMAX_TOKENS] == 0 ? "argmax: there is nowhere to put the tokens" : nullptr;
}

Scratch argmax_scratch(const tg_op &op, const Shape &shape) {
  const int64_t x = op.args[TG_ARGMAX_X];
  return {shape.max_rows(x) * parts_of(shape.buffers[x].width) * static_cast<int64_t>(sizeof(Best)), 0};
}

}  // namespace

extern const Kernel argmax = {argmax_run, argmax_check, argmax_scratch};

}  // namespace tg::TG_ISA
