// What kernels over rows of activations share: dtypes that are known only when a plan is made, norms of a row, checks.
#pragma once

#include "../simd.h"
#include "textgen_cpu_kinds.h"

namespace tg::TG_ISA {

template <typename T>
struct Type {
  using type = T;
};

// Calls f(Type<float>()) or f(Type<Bf16>()).
template <typename F>
TG_INLINE void by_dtype(int64_t dtype, const F &f) {
  if (dtype == TG_BF16) {
    f(Type<Bf16>());
  } else {
    f(Type<float>());
  }
}

// The same for what is stored: Type<Half>() too.
template <typename F>
TG_INLINE void by_stored(int64_t dtype, const F &f) {
  if (dtype == TG_F16) {
    f(Type<Half>());
  } else {
    by_dtype(dtype, f);
  }
}

// The same for a cache: Type<int8_t>() too.
template <typename F>
TG_INLINE void by_cached(int64_t dtype, const F &f) {
  if (dtype == TG_I8) {
    f(Type<int8_t>());
  } else {
    by_stored(dtype, f);
  }
}

template <typename T>
TG_INLINE T *address(int64_t argument) {
  return reinterpret_cast<T *>(static_cast<intptr_t>(argument));
}

TG_INLINE bool is_float(int64_t dtype) { return dtype == TG_F32 || dtype == TG_BF16; }
TG_INLINE bool is_stored(int64_t dtype) { return is_float(dtype) || dtype == TG_F16; }
TG_INLINE bool is_cached(int64_t dtype) { return is_stored(dtype) || dtype == TG_I8; }

// Calls f(i, lanes) for each vector of a row: lanes is kLanes but for the last.
template <typename F>
TG_INLINE void by_vector(int64_t begin, int64_t end, const F &f) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) f(i, kLanes);
  if (i < end) f(i, static_cast<int>(end - i));
}

// Writes numbers as 8-bit integers and gives their scale; it is none where a number is not finite.
template <typename T>
TG_INLINE float quantize_numbers(const T *from, int8_t *to, int64_t count) {
  Vec top = {}, broken = {};
  by_vector(0, count, [&](int64_t i, int lanes) {
    const Vec v = load_lanes(from + i, lanes);
    top = max(top, abs(v));
    broken += v * 0.0f;
  });
  const float most = largest(top);
  const Vec inverse = splat(most > 0 ? 127.0f / most : 0.0f);
  by_vector(0, count, [&](int64_t i, int lanes) { store_lanes(to + i, round(load_lanes(from + i, lanes) * inverse), lanes); });
  return most / 127.0f + sum(broken);
}

// 0, 1, 2, ...
TG_INLINE IVec lane_index() {
  IVec index;
  for (int i = 0; i < kLanes; i++) index[i] = i;
  return index;
}

// A weight or bias of a norm, or none.
struct Parameter {
  const void *values;
  int64_t dtype;

  TG_INLINE Vec at(int64_t i, int lanes) const {
    return dtype == TG_BF16 ? load_lanes(static_cast<const Bf16 *>(values) + i, lanes)
                            : load_lanes(static_cast<const float *>(values) + i, lanes);
  }
};

struct NormForm {
  Parameter weight, bias;
  float eps;
  bool centred;  // the mean is taken off
};

// y = norm(x) * weight + bias; the parameters begin `first` numbers in.
template <typename T>
TG_INLINE void norm_row(const T *x, T *y, int64_t size, const NormForm &form, int64_t first) {
  Vec total[2] = {};
  float mean = 0;
  if (form.centred) {
    by_vector(0, size, [&](int64_t i, int lanes) { total[0] += load_lanes(x + i, lanes); });
    mean = sum(total[0]) / size;
    total[0] = Vec{};
    by_vector(0, size, [&](int64_t i, int lanes) {
      const Vec off = lane_index() < lanes ? load_lanes(x + i, lanes) - mean : Vec{};
      total[0] = fma(off, off, total[0]);
    });
  } else {
    int64_t i = 0;
    for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
      const Vec a = load(x + i), b = load(x + i + kLanes);
      total[0] = fma(a, a, total[0]);
      total[1] = fma(b, b, total[1]);
    }
    by_vector(i, size, [&](int64_t at, int lanes) {
      const Vec a = load_lanes(x + at, lanes);
      total[0] = fma(a, a, total[0]);
    });
  }
  const float factor = 1.0f / __builtin_sqrtf(sum(total[0] + total[1]) / size + form.eps);
  by_vector(0, size, [&](int64_t i, int lanes) {
    Vec v = (load_lanes(x + i, lanes) - mean) * factor;
    if (form.weight.values != nullptr) v *= form.weight.at(first + i, lanes);
    if (form.bias.values != nullptr) v += form.bias.at(first + i, lanes);
    store_lanes(y + i, v, lanes);
  });
}

struct Activation {
  int64_t kind;  // tg_activation
  bool gated;
  float limit, alpha;  // of TG_CLAMPED_SILU
};

// Numbers [begin, end) of to [width], which may lie over `from`, [width], or gated [2 * width], gates first. (elementwise.cpp)
void activate_part(const Activation &how, const float *from, float *to, int64_t width, int64_t begin, int64_t end);
void activate_part(const Activation &how, const Bf16 *from, Bf16 *to, int64_t width, int64_t begin, int64_t end);
// All rows of y, whose columns the workers share.
void activate_rows(const Activation &how, const Run &run, const tg_buffer &x, const tg_buffer &y, int64_t rows);

// What a row goes through before it is multiplied.
struct Before {
  int64_t kind;  // tg_before
  NormForm norm;
  Activation activation;

  TG_INLINE bool activates() const { return kind == TG_BEFORE_ACTIVATION || kind == TG_BEFORE_GATED; }
};

template <typename T>
TG_INLINE void go_through(const Before &before, const T *from, T *to, int64_t width) {
  if (before.activates()) {
    activate_part(before.activation, from, to, width, 0, width);
  } else {
    norm_row(from, to, width, before.norm, 0);
  }
}

TG_INLINE bool is_activation(int64_t kind, bool gated) { return kind >= TG_SILU && kind <= (gated ? TG_CLAMPED_SILU : TG_RELU2); }
TG_INLINE bool is_parameter(int64_t values, int64_t dtype) { return values == 0 || is_float(dtype); }

}  // namespace tg::TG_ISA
