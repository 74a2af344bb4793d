// Number by number: activations, clamps, scalings.
#include "rows.h"

namespace tg::TG_ISA {
namespace {

constexpr int64_t kRun = 256;  // numbers of a row that one worker takes: rows are wide, and often there is only one

TG_INLINE Vec sigmoid(Vec x) { return 1.0f / (1.0f + exp(-x)); }

// 1 - 2 / (e^2x + 1), and a series near 0, where that difference would lose digits.
TG_INLINE Vec tanh(Vec x) {
  const Vec square = x * x;
  const Vec far = 1.0f - 2.0f / (exp(2.0f * x) + 1.0f);
  Vec near = fma(square, splat(-17.0f / 315.0f), splat(2.0f / 15.0f));
  near = fma(square, near, splat(-1.0f / 3.0f));
  near = fma(square * x, near, x);
  return square < 0.01f ? near : far;
}

template <int kind>
TG_INLINE Vec activation(Vec x) {
  if constexpr (kind == TG_SILU) return x * sigmoid(x);
  if constexpr (kind == TG_GELU) {
    Vec y;
    for (int i = 0; i < kLanes; i++) y[i] = 0.5f * x[i] * erfcf(-0.70710678f * x[i]);
    return y;
  }
  if constexpr (kind == TG_GELU_TANH) {
    const Vec inner = 0.79788456f * fma(0.044715f * x, x * x, x);
    // 0.5 * (1 + tanh(a)) is sigmoid(2a), which keeps its digits far to the left.
    return x * sigmoid(2.0f * inner);
  }
  const Vec positive = x < 0.0f ? Vec{} : x;  // a NaN stays one
  return kind == TG_RELU ? positive : positive * positive;
}

// Calls f(row, begin, end) for this worker's runs of columns.
template <typename F>
TG_INLINE void by_run(const Run &run, int64_t rows, int64_t width, const F &f) {
  const int64_t runs = ceil_div(width, kRun);
  const Share share = run.share(rows * runs);
  for (int64_t i = share.begin; i < share.end; i++) {
    const int64_t begin = i % runs * kRun;
    f(i / runs, begin, least(begin + kRun, width));
  }
}

template <typename T, int kind, bool gated>
TG_INLINE void activate_by(const Activation &how, const T *from, T *to, int64_t width, int64_t begin, int64_t end) {
  const Vec limit = splat(how.limit), alpha = splat(how.alpha);
  by_vector(begin, end, [&](int64_t i, int lanes) {
    Vec gate = load_lanes(from + i, lanes);
    if constexpr (kind == TG_CLAMPED_SILU) {
      Vec up = load_lanes(from + width + i, lanes);
      gate = gate > limit ? limit : gate;
      up = up > limit ? limit : (up < -limit ? -limit : up);
      gate = gate * sigmoid(alpha * gate) * (up + 1.0f);
    } else {
      gate = activation<kind>(gate);
      if constexpr (gated) gate *= load_lanes(from + width + i, lanes);
    }
    store_lanes(to + i, gate, lanes);
  });
}

template <bool gated, typename T>
void activate_as(const Activation &how, const T *from, T *to, int64_t width, int64_t begin, int64_t end) {
  switch (how.kind) {
    case TG_SILU: return activate_by<T, TG_SILU, gated>(how, from, to, width, begin, end);
    case TG_GELU: return activate_by<T, TG_GELU, gated>(how, from, to, width, begin, end);
    case TG_GELU_TANH: return activate_by<T, TG_GELU_TANH, gated>(how, from, to, width, begin, end);
    case TG_RELU: return activate_by<T, TG_RELU, gated>(how, from, to, width, begin, end);
    case TG_RELU2: return activate_by<T, TG_RELU2, gated>(how, from, to, width, begin, end);
    default: return activate_by<T, TG_CLAMPED_SILU, true>(how, from, to, width, begin, end);
  }
}

template <bool gated>
void activate_run(const tg_op &op, const Run &run) {
  const int64_t y = op.args[TG_ACTIVATE_Y];
  const Activation how = {op.args[TG_ACTIVATE_KIND], gated, static_cast<float>(op.numbers[TG_ACTIVATE_LIMIT]),
                          static_cast<float>(op.numbers[TG_ACTIVATE_ALPHA])};
  activate_rows(how, run, run.buffer(op.args[TG_ACTIVATE_X]), run.buffer(y), run.rows(y));
}

template <bool gated>
const char *activate_check(const tg_op &op, const Shape &shape) {
  const int64_t x = op.args[TG_ACTIVATE_X], y = op.args[TG_ACTIVATE_Y], kind = op.args[TG_ACTIVATE_KIND];
  if (!shape.is_float(x) || !shape.is_float(y)) return "activate: x and y are not both buffers of float32 or bfloat16";
  const tg_buffer &from = shape.buffers[x], &to = shape.buffers[y];
  if (from.dtype != to.dtype || from.extent != to.extent) return "activate: x and y differ in dtype or extent";
  if (from.width != (gated ? 2 : 1) * to.width) return "activate: the widths of x and y do not fit";
  if (!is_activation(kind, gated)) return "activate: no such activation";
  if (gated && from.address == to.address && from.address != nullptr && x != y) return "activate: y lies on x";
  return nullptr;
}

void switch_run(const tg_op &op, const Run &run) {
  const int64_t x = op.args[TG_SWITCH_X], s = op.args[TG_SWITCH_S];
  by_dtype(run.buffer(x).dtype, [&](auto t) {
    by_dtype(run.buffer(s).dtype, [&](auto u) {
      using T = typename decltype(t)::type;
      using S = typename decltype(u)::type;
      by_run(run, run.rows(x), run.buffer(x).width, [&](int64_t row, int64_t begin, int64_t end) {
        const Vec factor = sigmoid(splat(to_float(*run.row<S>(s, row))));
        T *values = run.row<T>(x, row);
        by_vector(begin, end,
                  [&](int64_t i, int lanes) { store_lanes(values + i, factor * load_lanes(values + i, lanes), lanes); });
      });
    });
  });
}

const char *switch_check(const tg_op &op, const Shape &shape) {
  const int64_t x = op.args[TG_SWITCH_X], s = op.args[TG_SWITCH_S];
  if (!shape.is_float(x) || !shape.is_float(s)) return "switch: a buffer is neither float32 nor bfloat16";
  return shape.buffers[x].extent == shape.buffers[s].extent ? nullptr : "switch: x and s have different rows";
}

template <typename F>
TG_INLINE void change(const tg_op &op, const Run &run, const F &f) {
  const int64_t x = op.args[TG_CHANGE_X];
  by_dtype(run.buffer(x).dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    by_run(run, run.rows(x), run.buffer(x).width, [&](int64_t row, int64_t begin, int64_t end) {
      T *values = run.row<T>(x, row);
      by_vector(begin, end,
                [&](int64_t i, int lanes) { store_lanes(values + i, f(load_lanes(values + i, lanes)), lanes); });
    });
  });
}

void clamp_run(const tg_op &op, const Run &run) {
  const Vec low = splat(static_cast<float>(op.numbers[TG_CLAMP_LOW]));
  const Vec high = splat(static_cast<float>(op.numbers[TG_CLAMP_HIGH]));
  change(op, run, [&](Vec x) { return x > high ? high : (x < low ? low : x); });
}

void scale_run(const tg_op &op, const Run &run) {
  const float factor = static_cast<float>(op.numbers[TG_SCALE_FACTOR]);
  const float cap = static_cast<float>(op.numbers[TG_SCALE_CAP]);
  if (cap == 0) return change(op, run, [&](Vec x) { return factor * x; });
  change(op, run, [&](Vec x) { return cap * tanh(factor * x / cap); });
}

const char *change_check(const tg_op &op, const Shape &shape) {
  return shape.is_float(op.args[TG_CHANGE_X]) ? nullptr : "clamp or scale: x is no buffer of float32 or bfloat16";
}

}  // namespace

void activate_part(const Activation &how, const float *from, float *to, int64_t width, int64_t begin, int64_t end) {
  how.gated ? activate_as<true>(how, from, to, width, begin, end) : activate_as<false>(how, from, to, width, begin, end);
}
void activate_part(const Activation &how, const Bf16 *from, Bf16 *to, int64_t width, int64_t begin, int64_t end) {
  how.gated ? activate_as<true>(how, from, to, width, begin, end) : activate_as<false>(how, from, to, width, begin, end);
}

void activate_rows(const Activation &how, const Run &run, const tg_buffer &x, const tg_buffer &y, int64_t rows) {
  by_dtype(y.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    by_run(run, rows, y.width, [&](int64_t row, int64_t begin, int64_t end) {
      const T *from = static_cast<const T *>(x.address) + row * x.stride;
      activate_part(how, from, static_cast<T *>(y.address) + row * y.stride, y.width, begin, end);
    });
  });
}

extern const Kernel activate = {activate_run<false>, activate_check<false>, nullptr};
extern const Kernel activate_gated = {activate_run<true>, activate_check<true>, nullptr};
extern const Kernel clamp = {clamp_run, change_check, nullptr};
extern const Kernel scale = {scale_run, change_check, nullptr};
extern const Kernel toggle = {switch_run, switch_check, nullptr};

}  // namespace tg::TG_ISA
