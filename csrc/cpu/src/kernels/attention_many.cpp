// Attention of many rows in bfloat16, as in prompts: a unit of keys and values is packed once for all rows of a task. Weights are
// rounded to bfloat16, or, where its pairs are slow to multiply or not at all, float32.
//
// Keys become 16 x 16 pairs of numbers turned about their diagonal, values pairs of neighbouring rows: the form that the right
// side of a product has, as a tile and as sixteen vectors alike.
#include "attention_multiply.h"
#include "attention_pack.h"

namespace tg::TG_ISA {

#if defined(__AVX2__)

namespace {

// Tiles [keys / 16][padded_dim / 32]; keys from `count` on are copies of the last.
void pack_keys(const Attention &form, const Bf16 *const *keys, int64_t count, Bf16 *to) {
  for (int64_t key = 0; key < count; key += 16) {
    for (int64_t d = 0; d < form.padded_dim; d += 32, to += kTile) {
      pack_tile([&](int64_t i) { return keys[least(key + i, count - 1)] + d; }, to);
    }
  }
}

// Which of `count` keys from position `key` on rows first to last of a task see: those from a multiple of 32 on.
TG_INLINE Share seen_by(const Attention &form, const Task &task, int64_t first, int64_t last, int64_t key, int64_t count) {
  const int64_t latest = task.start + (task.first + last) / form.share;
  const int64_t earliest = task.start + (task.first + first) / form.share;
  const int64_t oldest = form.window == 0 ? 0 : most(earliest - form.window + 1 - key, 0);
  return {oldest / 32 * 32, least(latest + 1 - key, count)};
}

// X: what queries and weights are multiplied as.
template <typename X>
void attend(const Attention &form, const Task &task, const Run &run, const Workspace &space, const Partial &partial,
            int64_t first, int64_t last) {
  const Products products;
  X *query = reinterpret_cast<X *>(space.query);
  X *weights = reinterpret_cast<X *>(sizeof(X) == 4 ? reinterpret_cast<char *>(space.scores) : space.weights);
  Bf16 *keys = reinterpret_cast<Bf16 *>(space.keys), *values = reinterpret_cast<Bf16 *>(space.values);
  for (int64_t row = 0; row < round_up(task.count, kBlock); row++) {
    X *to = query + row * form.padded_dim;
    memset(to, 0, form.padded_dim * sizeof(X));
    if (row >= task.count) continue;
    const int64_t at = task.first + row, head = task.kv_head * form.share + at % form.share;
    const Bf16 *from = run.row<Bf16>(form.q, task.token + at / form.share) + head * form.head_dim;
    by_vector(0, form.head_dim, [&](int64_t i, int lanes) { store_lanes(to + i, load_lanes(from + i, lanes), lanes); });
  }
  const Cached of_keys = cached_keys(form, task.kv_head), of_values = cached_values(form, task.kv_head, form.padded_value);
  const Bf16 *key_places[kManyUnit], *value_places[kManyUnit];
  Rows walk(*form.group, task.segment, task.begin + first * kManyUnit);
  for (int64_t unit = first; unit < last; unit++) {
    const int64_t key = task.begin + unit * kManyUnit, count = least(kManyUnit, task.end - key);
    int64_t rows[kManyUnit];
    for (int64_t i = 0; i < count; i++) rows[i] = walk.next();
    if (form.cache_dtype == TG_I8) {
      locate<Bf16, int8_t>(of_keys, rows, count, keys + kManyUnit * form.padded_dim, key_places);
      locate<Bf16, int8_t>(of_values, rows, count, values + kManyUnit * form.padded_value, value_places);
    } else {
      locate<Bf16, Bf16>(of_keys, rows, count, keys + kManyUnit * form.padded_dim, key_places);
      locate<Bf16, Bf16>(of_values, rows, count, values + kManyUnit * form.padded_value, value_places);
    }
    pack_keys(form, key_places, count, keys);
    pack_values(form, value_places, count, values);
    for (int64_t begin = 0; begin < task.count; begin += kBlock) {
      const int64_t end = least(begin + kBlock, task.count);
      const Share seen = seen_by(form, task, begin, end - 1, key, count);
      const int64_t some = seen.end - seen.begin, padded = round_up(some, 32);
      if (some <= 0) continue;
      multiply_keys(form, query + begin * form.padded_dim, keys + seen.begin * form.padded_dim, padded, end - begin, space.scores);
      for (int64_t row = begin; row < end; row += kLanes) {
        const int64_t from = (row - begin) * kManyUnit;
        weigh<X, true>(form, task, partial, row, least(kLanes, end - row), space.scores + from, weights + from, kManyUnit,
                       key + seen.begin, some, padded);
      }
      multiply_values(form, weights, values + seen.begin * form.padded_value, padded, end - begin,
                      partial.out + begin * form.padded_value);
    }
  }
}

}  // namespace

void attend_many(const Attention &form, const Task &task, const Run &run, const Workspace &space, const Partial &partial,
                 int64_t first, int64_t last) {
#if defined(__AVX512BF16__)
  if (kHasTiles || !slow_pairs()) return attend<Bf16>(form, task, run, space, partial, first, last);
#endif
#if !defined(__AMX_BF16__)
  attend<float>(form, task, run, space, partial, first, last);
#endif
}

#else

void attend_many(const Attention &, const Task &, const Run &, const Workspace &, const Partial &, int64_t, int64_t) {}

#endif

}  // namespace tg::TG_ISA
