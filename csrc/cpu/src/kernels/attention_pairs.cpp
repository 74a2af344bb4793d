// Attention of few rows on processors that multiply pairs of bfloat16, but have no tiles.
//
// Sixteen keys are multiplied at a time, as they lie in the cache: halves of two keys, eight apart, stand side by side in a
// vector and meet the query's numbers twice, so that only sums of eight are left to be added up across. Values are multiplied
// two keys at a time, or, where pairs are slow, by vectors in float32.
#include "attention_few.h"

namespace tg::TG_ISA {

#if defined(__AVX512BF16__) && !defined(__AMX_BF16__)

namespace {

constexpr int kTogether = 4;  // rows that are multiplied together: their sums, and queries of 64 numbers, are in registers
// How often memory is asked while sixteen keys are multiplied, before weights are found, and while values of two keys are.
constexpr int64_t kOfKeys = 4, kOfWeights = 8, kOfValues = 2;

// [rows][dims / 16][2][16]: sixteen numbers of a query, and the same once more.
void double_queries(const Attention &form, const Task &task, const Run &run, Bf16 *to) {
  for (int64_t row = 0; row < task.count; row++) {
    const int64_t at = task.first + row, head = task.kv_head * form.share + at % form.share;
    const Bf16 *from = run.row<Bf16>(form.q, task.token + at / form.share) + head * form.head_dim;
    for (int64_t d = 0; d < form.padded_dim; d += 16, to += 32) {
      const int64_t count = least(most(form.head_dim - d, 0), 16);
      memset(to, 0, 32 * sizeof(Bf16));
      memcpy(to, from + d, count * sizeof(Bf16));
      memcpy(to + 16, from + d, count * sizeof(Bf16));
    }
  }
}

template <int kRowsOf>
struct Each {
  Vec row[kRowsOf];
};

// Products of queries with sixteen keys.
template <int kRowsOf, typename F>
struct Scorer {
  const Bf16 *query;  // doubled
  int64_t dims;       // padded
  Sixteen keys;
  const F &before;  // called kOfKeys times

  // Sums of eight, of key `first` in the lower half, of first + 8 in the upper one.
  TG_INLINE Each<kRowsOf> multiply(int first) const {
    const Bf16 *low = keys.from + first * keys.stride, *high = low + 8 * keys.stride;
    Each<kRowsOf> sums = {};
    for (int64_t d = 0; d < dims; d += 16) {
      const __m512i lower = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(low + d)));
      const __m512i both = _mm512_inserti64x4(lower, _mm256_loadu_si256(reinterpret_cast<const __m256i *>(high + d)), 1);
#pragma GCC unroll 4
      for (int r = 0; r < kRowsOf; r++) {
        const __m512i twice = _mm512_loadu_si512(query + (r * dims + d) * 2);
        sums.row[r] = _mm512_dpbf16_ps(sums.row[r], (__m512bh)twice, (__m512bh)both);
      }
    }
    return sums;
  }

  // Of keys first, first + bit, ..., each sum where its key is.
  template <int bit>
  TG_INLINE Each<kRowsOf> score(int first) const {
    if constexpr (bit == 8) {
      return multiply(first);
    } else {
      if constexpr (bit == 4) before();
      Each<kRowsOf> sums = score<2 * bit>(first);
      const Each<kRowsOf> others = score<2 * bit>(first + bit);
#pragma GCC unroll 4
      for (int r = 0; r < kRowsOf; r++) {
        sums.row[r] = folded<bit>(sums.row[r], others.row[r], [](Vec x, Vec y) { return x + y; });
      }
      return sums;
    }
  }
};
static_assert(kOfKeys == 4 && kRows == kLanes);

// The scores of sixteen keys for so many queries, to `scores`, kFewUnit apart.
template <int kRowsOf, typename F>
TG_INLINE void score_keys(const Bf16 *query, int64_t dims, const Sixteen &keys, float *scores, const F &before) {
  const auto found = [&] {
    if (dims == 64) return Scorer<kRowsOf, F>{query, 64, keys, before}.template score<1>(0);
    return Scorer<kRowsOf, F>{query, dims, keys, before}.template score<1>(0);
  }();
#pragma GCC unroll 4
  for (int r = 0; r < kRowsOf; r++) store(scores + r * kFewUnit, found.row[r]);
}

// out[row] += sum over up to sixteen keys of weights[row][key] * values[key], for so many rows and 32 columns a chunk.
template <int kRowsOf, int kChunks, typename F>
TG_INLINE void add_pairs(const Bf16 *weights, const Sixteen &values, int64_t count, float *out, int64_t stride, const F &before) {
  alignas(64) uint16_t low[32], high[32];
  for (int i = 0; i < 16; i++) {
    low[2 * i] = i, low[2 * i + 1] = i + 32;
    high[2 * i] = i + 16, high[2 * i + 1] = i + 48;
  }
  const __m512i of_low = _mm512_load_si512(low), of_high = _mm512_load_si512(high);
  Vec total[kRowsOf][2 * kChunks];
#pragma GCC unroll 4
  for (int r = 0; r < kRowsOf; r++) {
#pragma GCC unroll 4
    for (int c = 0; c < 2 * kChunks; c++) total[r][c] = load(out + r * stride + c * kLanes);
  }
  const Bf16 *first = values.from;
  for (int64_t key = 0; key < count; key += 2, first += 2 * values.stride) {
    before();
    const Bf16 *second = key + 1 < count ? first + values.stride : first;  // what is behind the last key has no weight
    __m512bh both[2 * kChunks];
#pragma GCC unroll 2
    for (int c = 0; c < kChunks; c++) {
      const __m512i x = _mm512_loadu_si512(first + c * 32), y = _mm512_loadu_si512(second + c * 32);
      both[2 * c] = (__m512bh)_mm512_permutex2var_epi16(x, of_low, y);
      both[2 * c + 1] = (__m512bh)_mm512_permutex2var_epi16(x, of_high, y);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRowsOf; r++) {
      int32_t two;
      memcpy(&two, weights + r * kFewUnit + key, sizeof two);
      const __m512bh w = (__m512bh)_mm512_set1_epi32(two);
#pragma GCC unroll 4
      for (int c = 0; c < 2 * kChunks; c++) total[r][c] = _mm512_dpbf16_ps(total[r][c], w, both[c]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRowsOf; r++) {
#pragma GCC unroll 4
    for (int c = 0; c < 2 * kChunks; c++) store(out + r * stride + c * kLanes, total[r][c]);
  }
}

// The same for all columns.
template <int kRowsOf, typename F>
TG_INLINE void add_group(const Attention &form, const Bf16 *weights, const Sixteen &values, int64_t count, float *out,
                         const F &before) {
  int64_t column = 0;
  for (; column + 64 <= form.padded_value; column += 64) {
    add_pairs<kRowsOf, 2>(weights, {values.from + column, values.stride}, count, out + column, form.padded_value, before);
  }
  for (; column < form.padded_value; column += 32) {
    add_pairs<kRowsOf, 1>(weights, {values.from + column, values.stride}, count, out + column, form.padded_value, before);
  }
}
template <int kRowsOf, typename F>
TG_INLINE void add_group(const Attention &form, const float *weights, const Sixteen &values, int64_t count, float *out,
                         const F &before) {
  add_values<kRowsOf>(form, weights, &values, count, out, before);
}

// W: what weights are multiplied as.
template <typename W>
void attend(const Attention &form, const Task &task, const Run &run, const Workspace &space, const Partial &partial,
            int64_t first, int64_t last, bool asked, const Task *then) {
  const auto query_of = [&](int64_t head) { return reinterpret_cast<Bf16 *>(space.query) + head * kRows * form.padded_dim * 2; };
  const auto scores_of = [&](int64_t head) { return space.scores + head * kRows * kFewUnit; };
  const auto weights_of = [&](int64_t head) {
    return reinterpret_cast<W *>(sizeof(W) == 2 ? space.weights : reinterpret_cast<char *>(space.scores)) + head * kRows * kFewUnit;
  };
  Bf16 *key_copies = reinterpret_cast<Bf16 *>(space.keys), *value_copies = reinterpret_cast<Bf16 *>(space.values);
  each_head(form, task, partial, [&](const Task &one, const Partial &) {
    double_queries(form, one, run, query_of(one.kv_head - task.kv_head));
  });
  const int64_t blocks = ceil_div(task.count, kTogether);
  const auto calls = [&](int64_t count) {
    return Calls{task.heads * blocks * ceil_div(count, 16) * kOfKeys,
                 task.heads * (blocks * (count / 2) * kOfValues + kOfWeights)};
  };
  each_unit(form, task, first, last, asked, then, calls,
            [&](const CacheUnit &unit, int64_t key, CacheAhead &with_keys, CacheAhead &with_values) {
    const Groups groups(unit);
    // All heads of sixteen tokens, then of the next: as they lie.
    for (int64_t g = 0; g < groups.groups; g++) {
      for (int64_t head = 0; head < task.heads; head++) {
        const Cached of_keys = cached_keys(form, task.kv_head + head);
        const Sixteen keys = groups.at(form, of_keys, g, true, key_copies);
        by_blocks<kTogether>(task.count, [&](auto rows, int64_t row) {
          score_keys<decltype(rows)::value>(query_of(head) + row * form.padded_dim * 2, form.padded_dim, keys,
                                            scores_of(head) + row * kFewUnit + g * 16, [&] { with_keys.ask(); });
        });
        if (of_keys.scales != nullptr) groups.scale(of_keys, g, task.count, scores_of(head) + g * 16);
      }
    }
    each_head(form, task, partial, [&](const Task &one, const Partial &own) {
      const int64_t head = one.kv_head - task.kv_head, padded = groups.groups * 16;
      with_values.ask(kOfWeights);
      const auto found = [&](auto most_rows) {
        weigh<W, true, decltype(most_rows)::value>(form, one, own, 0, one.count, scores_of(head), weights_of(head), kFewUnit, key,
                                                   groups.count, padded);
      };
      one.count <= kTogether ? found(Count<kTogether>()) : found(Count<kRows>());
    });
    for (int64_t g = 0; g < groups.groups; g++) {
      for (int64_t head = 0; head < task.heads; head++) {
        const Cached of_values = cached_values(form, task.kv_head + head, form.padded_value);
        const Sixteen values = groups.at(form, of_values, g, false, value_copies);
        if (of_values.scales != nullptr) groups.scale(of_values, g, task.count, weights_of(head) + g * 16);
        by_blocks<kTogether>(task.count, [&](auto rows, int64_t row) {
          add_group<decltype(rows)::value>(form, weights_of(head) + row * kFewUnit + g * 16, values, groups.count_of(g),
                                           partial.out + (head * kRows + row) * form.padded_value, [&] { with_values.ask(kOfValues); });
        });
      }
    }
  });
}

}  // namespace

void attend_few(const Attention &form, const Task &task, const Run &run, const Workspace &space, const Partial &partial,
                int64_t first, int64_t last, bool asked, const Task *then) {
  if (slow_pairs()) return attend<float>(form, task, run, space, partial, first, last, asked, then);
  attend<Bf16>(form, task, run, space, partial, first, last, asked, then);
}

#elif !defined(__AMX_BF16__)

void attend_few(const Attention &, const Task &, const Run &, const Workspace &, const Partial &, int64_t, int64_t, bool, const Task *) {}

#endif

}  // namespace tg::TG_ISA
