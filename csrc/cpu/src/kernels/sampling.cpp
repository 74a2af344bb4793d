// The likeliest token of each row of logits, of all or of those that a mask allows, and what turns a logit into a log-probability.
#include "likeliest.h"

namespace tg::TG_ISA {
namespace {

constexpr int64_t kPart = 4096;  // logits that one worker looks at before the next: a vocabulary is wide, rows are few

// The same of those numbers whose bit is set, without the sum; no token where that leaves none. `first` is a multiple of 32.
template <typename T>
TG_INLINE Best best_allowed(const T *x, const char *mask, int64_t first, int64_t count) {
  const float never = -__builtin_inff();
  const auto allowed = [&](int64_t i, int lanes) { return load_allowed(x, mask, first + i, lanes); };
  Vec top = splat(never);
  by_vector(0, count, [&](int64_t i, int lanes) { top = max(allowed(i, lanes), top); });
  Best best = {largest(top), 0, -1};
  if (best.top == never) return best;
  for (int64_t i = 0; best.token < 0 && i < count; i += kLanes) {
    const IVec equal = allowed(i, static_cast<int>(least(kLanes, count - i))) == best.top;
    for (int lane = kLanes - 1; lane >= 0; lane--) {
      if (equal[lane] != 0) best.token = first + i + lane;
    }
  }
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
  const char *const *masks = address<const char *>(op.args[TG_ARGMAX_MASKS]);
  const auto stays = [&](int64_t row) { return masks != nullptr && masks[row] == nullptr; };
  Best *found = reinterpret_cast<Best *>(run.shared);
  const Share share = run.share(rows * parts);
  by_dtype(run.buffer(x).dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    for (int64_t i = share.begin; i < share.end; i++) {
      const int64_t row = i / parts, first = i % parts * kPart, count = least(kPart, width - first);
      if (stays(row)) continue;
      const T *numbers = run.row<T>(x, row);
      found[i] = masks == nullptr ? best_of(numbers, first, count) : best_allowed(numbers, masks[row], first, count);
    }
  });
  run.barrier();
  const Share mine = run.share(rows);
  int64_t *tokens = address<int64_t>(op.args[TG_ARGMAX_TOKENS]);
  float *normaliser = address<float>(op.args[TG_ARGMAX_NORMALISER]);
  float *logprobs = address<float>(op.args[TG_ARGMAX_LOGPROBS]);
  for (int64_t row = mine.begin; row < mine.end; row++) {
    if (stays(row)) continue;
    Best best = found[row * parts];
    for (int64_t part = 1; part < parts; part++) best = later(best, found[row * parts + part]);
    tokens[row] = best.token;
    if (normaliser != nullptr && masks == nullptr) normaliser[row] = best.top + logf(best.total);
    if (logprobs != nullptr) logprobs[row] = best.top - normaliser[row];
  }
}

const char *argmax_check(const tg_op &op, const Shape &shape) {
  if (!shape.is_float(op.args[TG_ARGMAX_X])) return "argmax: x is no buffer of float32 or bfloat16";
  if (op.args[TG_ARGMAX_TOKENS] == 0) return "argmax: there is nowhere to put the tokens";
  const bool alone = op.args[TG_ARGMAX_LOGPROBS] != 0 && op.args[TG_ARGMAX_NORMALISER] == 0;
  return alone ? "argmax: there are no log-probabilities without a normaliser" : nullptr;
}

Scratch argmax_scratch(const tg_op &op, const Shape &shape) {
  const int64_t x = op.args[TG_ARGMAX_X];
  return {shape.max_rows(x) * parts_of(shape.buffers[x].width) * static_cast<int64_t>(sizeof(Best)), 0};
}

}  // namespace

extern const Kernel argmax = {argmax_run, argmax_check, argmax_scratch};

}  // namespace tg::TG_ISA
