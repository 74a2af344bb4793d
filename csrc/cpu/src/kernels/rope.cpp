// Rotary embedding, and keys and values on their way to the cache.
#include "rows.h"

namespace tg::TG_ISA {
namespace {

void table_run(const tg_op &op, const Run &run) {
  const int64_t y = op.args[TG_TABLE_Y], half = run.buffer(y).width / 2;
  const float *inverse = address<const float>(op.args[TG_TABLE_INVERSE]);
  const float factor = static_cast<float>(op.numbers[TG_TABLE_FACTOR]);
  const Share share = run.share(run.step->tokens * half);
  by_dtype(run.buffer(y).dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    for (int64_t i = share.begin; i < share.end; i++) {
      const int64_t token = i / half, pair = i % half;
      const float angle = static_cast<float>(run.step->positions[token]) * inverse[pair];
      T *to = run.row<T>(y, token) + pair;
      put(to, cosf(angle) * factor);
      put(to + half, sinf(angle) * factor);
    }
  });
}

const char *table_check(const tg_op &op, const Shape &shape) {
  const int64_t y = op.args[TG_TABLE_Y];
  if (!shape.is_float(y) || shape.buffers[y].extent != TG_TOKENS) return "rope table: y is no buffer of floats by token";
  if (shape.buffers[y].width % 2 != 0 || op.args[TG_TABLE_INVERSE] == 0) return "rope table: it takes pairs of numbers";
  return nullptr;
}

// The halves of a head: (a, b) becomes (a cos - b sin, b cos + a sin).
template <typename T, typename C>
TG_INLINE void turn(T *head, const C *table, int64_t half) {
  by_vector(0, half, [&](int64_t i, int lanes) {
    const Vec cos = load_lanes(table + i, lanes), sin = load_lanes(table + half + i, lanes);
    const Vec a = load_lanes(head + i, lanes), b = load_lanes(head + half + i, lanes);
    store_lanes(head + i, a * cos - b * sin, lanes);
    store_lanes(head + half + i, fma(a, sin, b * cos), lanes);
  });
}

template <typename T, typename K>
TG_INLINE void write(const T *from, K *to, float *scale, int64_t count) {
  if constexpr (sizeof(K) == 1) {
    *scale = quantize_numbers(from, to, count);
  } else {
    by_vector(0, count, [&](int64_t i, int lanes) { store_lanes(to + i, load_lanes(from + i, lanes), lanes); });
  }
}

// By head: those of a token may be turned by several workers, since often there is only one token.
template <typename T, typename K>
void rope_rows(const tg_op &op, const Run &run) {
  const int64_t x = op.args[TG_ROPE_X], heads = op.args[TG_ROPE_HEADS], kv_heads = op.args[TG_ROPE_KV_HEADS];
  const int64_t dim = op.args[TG_ROPE_HEAD_DIM], value_dim = op.args[TG_ROPE_VALUE_DIM];
  const int64_t table = op.args[TG_ROPE_TABLE_BUFFER];
  K *keys = address<K>(op.args[TG_ROPE_KEYS]), *values = address<K>(op.args[TG_ROPE_VALUES]);
  float *key_scales = address<float>(op.args[TG_ROPE_KEY_SCALES]);
  float *value_scales = address<float>(op.args[TG_ROPE_VALUE_SCALES]);
  const int64_t *rows = run.step->group[op.args[TG_ROPE_GROUP]].rows;
  const int64_t units = heads + kv_heads + (values == nullptr ? 0 : kv_heads);
  const Share share = run.share(run.step->tokens * units);
  for (int64_t i = share.begin; i < share.end; i++) {
    const int64_t token = i / units, unit = i % units;
    T *row = run.row<T>(x, token);
    if (unit >= heads + kv_heads) {
      const int64_t head = unit - heads - kv_heads;
      write(row + (heads + kv_heads) * dim + head * value_dim,
            values + rows[token] * op.args[TG_ROPE_VALUE_STRIDE] + head * value_dim,
            value_scales + rows[token] * kv_heads + head, value_dim);
      continue;
    }
    T *head = row + unit * dim;
    if (table >= 0) {
      by_dtype(run.buffer(table).dtype, [&](auto c) {
        using C = typename decltype(c)::type;
        turn(head + op.args[TG_ROPE_FIRST], run.row<C>(table, token), run.buffer(table).width / 2);
      });
    }
    if (unit >= heads && keys != nullptr) {
      write(head, keys + rows[token] * op.args[TG_ROPE_KEY_STRIDE] + (unit - heads) * dim,
            key_scales + rows[token] * kv_heads + (unit - heads), dim);
    }
  }
}

void rope_run(const tg_op &op, const Run &run) {
  by_dtype(run.buffer(op.args[TG_ROPE_X]).dtype, [&](auto t) {
    by_cached(op.args[TG_ROPE_CACHE_DTYPE],
              [&](auto k) { rope_rows<typename decltype(t)::type, typename decltype(k)::type>(op, run); });
  });
}

const char *rope_check(const tg_op &op, const Shape &shape) {
  const int64_t x = op.args[TG_ROPE_X], table = op.args[TG_ROPE_TABLE_BUFFER];
  const int64_t heads = op.args[TG_ROPE_HEADS] + op.args[TG_ROPE_KV_HEADS], dim = op.args[TG_ROPE_HEAD_DIM];
  const int64_t values = op.args[TG_ROPE_VALUES] == 0 ? 0 : op.args[TG_ROPE_KV_HEADS] * op.args[TG_ROPE_VALUE_DIM];
  if (!shape.is_float(x) || shape.buffers[x].extent != TG_TOKENS) return "rope: x is no buffer of floats by token";
  if (op.args[TG_ROPE_HEADS] < 0 || op.args[TG_ROPE_KV_HEADS] < 0 || dim < 1 || values < 0) return "rope: a size is negative";
  if (shape.buffers[x].width < heads * dim + values) return "rope: x is narrower than its heads";
  const int64_t dtype = op.args[TG_ROPE_CACHE_DTYPE];
  if (!is_cached(dtype)) return "rope: the cache is not one of floats or 8-bit integers";
  if (dtype == TG_I8 && ((op.args[TG_ROPE_KEYS] != 0 && op.args[TG_ROPE_KEY_SCALES] == 0) ||
                         (op.args[TG_ROPE_VALUES] != 0 && op.args[TG_ROPE_VALUE_SCALES] == 0))) {
    return "rope: a cache of integers has no scales";
  }
  const int64_t first = op.args[TG_ROPE_FIRST];
  if (first < 0 || first > dim) return "rope: what turns does not begin within a head";
  if (table >= 0 &&
      (!shape.is_float(table) || shape.buffers[table].width > dim - first || shape.buffers[table].width % 2 != 0)) {
    return "rope: the table is no buffer of floats, or wider than a head";
  }
  if (op.args[TG_ROPE_GROUP] < 0) return "rope: the group is negative";
  return nullptr;
}

}  // namespace

extern const Kernel rope_table = {table_run, table_check, nullptr};
extern const Kernel rope_write = {rope_run, rope_check, nullptr};

}  // namespace tg::TG_ISA
