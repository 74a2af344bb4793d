// Attention of few rows: a sequence's last token, or short runs of tokens. Any instruction set and type of cache.
#include "attention.h"

namespace tg::TG_ISA {
namespace {

// The products of one query with kLanes keys; all begin at whole vectors and are padded with zeros.
template <typename T>
TG_INLINE Vec products(const float *query, const T *const *keys, int64_t dim) {
  Vec total[kLanes] = {};
  for (int64_t d = 0; d < dim; d += kLanes) {
    const Vec q = load(query + d);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++) total[i] = fma(q, load(keys[i] + d), total[i]);
  }
  return sums(total);
}
#if defined(__AVX512BF16__)
TG_INLINE Vec products(const Bf16 *query, const Bf16 *const *keys, int64_t dim) {
  Vec total[kLanes] = {};
  for (int64_t d = 0; d < dim; d += 2 * kLanes) {
    const __m512bh q = (__m512bh)_mm512_loadu_si512(query + d);
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++) {
      total[i] = _mm512_dpbf16_ps(total[i], q, (__m512bh)_mm512_loadu_si512(keys[i] + d));
    }
  }
  return sums(total);
}
#endif

constexpr int kColumns = kRegisters == 32 ? 4 : 2;  // vectors of values at a time, so that the sums stay in registers

// out[row] += sum over keys of weights[row][key] * values[key], for `rows` rows and `columns` vectors. `before` is told of each
// key and the first column.
template <int rows, int columns, typename V, typename F>
TG_INLINE void add_block(const float *weights, const V *const *values, int64_t count, int64_t column, float *out,
                          int64_t stride, const F &before) {
  Vec total[rows][columns];
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++) {
#pragma GCC unroll 16
    for (int c = 0; c < columns; c++) total[r][c] = load(out + r * stride + column + c * kLanes);
  }
  for (int64_t key = 0; key < count; key++) {
    before(key, column);
    Vec value[columns];
#pragma GCC unroll 16
    for (int c = 0; c < columns; c++) value[c] = load(values[key] + column + c * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
      const Vec w = splat(weights[r * kUnit + key]);
#pragma GCC unroll 16
      for (int c = 0; c < columns; c++) total[r][c] = fma(w, value[c], total[r][c]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++) {
#pragma GCC unroll 16
    for (int c = 0; c < columns; c++) store(out + r * stride + column + c * kLanes, total[r][c]);
  }
}

// The same for all columns.
template <int rows, typename V, typename F>
TG_INLINE void add_values(const Attention &form, const float *weights, const V *const *values, int64_t count, float *out,
                          const F &before) {
  int64_t column = 0;
  for (; column + kColumns * kLanes <= form.value_lanes; column += kColumns * kLanes) {
    add_block<rows, kColumns>(weights, values, count, column, out, form.padded_value, before);
  }
  for (; column < form.value_lanes; column += kLanes) {
    add_block<rows, 1>(weights, values, count, column, out, form.padded_value, before);
  }
}

// S is what the cache has, T what it becomes.
template <typename Q, typename T, typename S>
void attend(const Attention &form, const Task &task, const Workspace &space, const Partial &partial, int64_t first,
            int64_t last) {
  const Q *query = reinterpret_cast<const Q *>(space.query);
  const Cached of_keys = cached_keys(form, task.kv_head), of_values = cached_values(form, task.kv_head, form.value_lanes);
  Rows walk(*form.group, task.segment, task.begin + first * kUnit);
  int64_t around[2][kUnit];  // rows of a unit and of the next one
  const auto find = [&](int64_t unit) {
    const int64_t count = least(kUnit, task.end - task.begin - unit * kUnit);
    for (int64_t i = 0; i < count; i++) around[unit & 1][i] = walk.next();
    return count;
  };
  int64_t following = find(first);
  for (int64_t i = 0; i < following; i++) {
    ask_for<S>(of_keys, around[first & 1][i]);
    ask_for<S>(of_values, around[first & 1][i]);
  }
  for (int64_t unit = first; unit < last; unit++) {
    const int64_t key = task.begin + unit * kUnit, count = following;
    const int64_t padded = round_up(count, kLanes);
    int64_t *rows = around[unit & 1];
    for (int64_t i = count; i < padded; i++) rows[i] = rows[count - 1];  // read, then masked
    const int64_t *next = around[(unit + 1) & 1];
    following = unit + 1 < last ? find(unit + 1) : 0;
    const T *keys[kUnit], *values[kUnit];
    locate<T, S>(of_keys, rows, padded, reinterpret_cast<T *>(space.keys), keys);
    locate<T, S>(of_values, rows, count, reinterpret_cast<T *>(space.values), values);
    // The next unit is asked for piece by piece between the products of this one: more at once would have to wait.
    for (int64_t row = 0; row < task.count; row++) {
      float *scores = space.scores + row * kUnit;
      for (int64_t i = 0; i < padded; i += kLanes) {
        if (row == 0) {
          for (int64_t j = i; j < least(i + kLanes, following); j++) ask_for<S>(of_keys, next[j]);
        }
        store(scores + i, products(query + row * form.padded_dim, keys + i, form.padded_dim));
      }
    }
    for (int64_t row = 0; row < task.count; row += kLanes) {
      float *scores = space.scores + row * kUnit;
      weigh<float>(form, task, partial, row, least(kLanes, task.count - row), scores, scores, kUnit, key, count, padded);
    }
    for (int64_t row = 0; row < task.count; row += 4) {
      const float *weights = space.scores + row * kUnit;
      float *out = partial.out + row * form.padded_value;
      const auto ask = [&](int64_t i, int64_t column) {
        if (row == 0 && column == 0 && i < following) ask_for<S>(of_values, next[i]);
      };
      switch (task.count - row) {
        case 1: add_values<1>(form, weights, values, count, out, ask); break;
        case 2: add_values<2>(form, weights, values, count, out, ask); break;
        case 3: add_values<3>(form, weights, values, count, out, ask); break;
        default: add_values<4>(form, weights, values, count, out, ask); break;
      }
    }
  }
}

// The task's queries in whole vectors; products of two bfloat16 keep theirs as they are.
template <typename Q, typename T>
void copy_queries(const Attention &form, const Task &task, const Run &run, char *to) {
  for (int64_t row = 0; row < task.count; row++) {
    const int64_t at = task.first + row, head = task.kv_head * form.share + at % form.share;
    const T *from = run.row<T>(form.q, task.token + at / form.share) + head * form.head_dim;
    Q *query = reinterpret_cast<Q *>(to) + row * form.padded_dim;
    for (int64_t i = 0; i < form.head_dim; i++) {
      if constexpr (sizeof(Q) == sizeof(T)) {
        query[i] = from[i];
      } else {
        query[i] = to_float(from[i]);
      }
    }
    memset(query + form.head_dim, 0, (form.padded_dim - form.head_dim) * sizeof(Q));
  }
}

}  // namespace

void attend_by_vectors(const Attention &form, const Task &task, const Run &run, const Workspace &space, const Partial &partial,
                       int64_t first, int64_t last) {
#if defined(__AVX512BF16__)
  if (form.q_dtype == TG_BF16 && (form.cache_dtype == TG_BF16 || form.cache_dtype == TG_I8)) {
    copy_queries<Bf16, Bf16>(form, task, run, space.query);
    if (form.cache_dtype == TG_I8) return attend<Bf16, Bf16, int8_t>(form, task, space, partial, first, last);
    return attend<Bf16, Bf16, Bf16>(form, task, space, partial, first, last);
  }
#endif
  if (form.q_dtype == TG_BF16) {
    copy_queries<float, Bf16>(form, task, run, space.query);
  } else {
    copy_queries<float, float>(form, task, run, space.query);
  }
  if (form.cache_dtype == TG_I8) return attend<float, float, int8_t>(form, task, space, partial, first, last);
  if (form.cache_dtype == TG_BF16) return attend<float, Bf16, Bf16>(form, task, space, partial, first, last);
  if (form.cache_dtype == TG_F16) return attend<float, Half, Half>(form, task, space, partial, first, last);
  attend<float, float, float>(form, task, space, partial, first, last);
}

}  // namespace tg::TG_ISA
