// Attention of few rows: a sequence's last token, or short runs of tokens. Any instruction set and type of cache, in float32.
#include "attention_ahead.h"

namespace tg::TG_ISA {
namespace {

constexpr int kQueries = 4;  // that are multiplied together at most: numbers of a key are made floats once for all

// Keys that are multiplied together with so many queries, a part of kLanes, so that the sums stay in registers.
constexpr int keys_of(int queries) {
  int keys = kLanes;
  while (keys * queries > (kRegisters == 32 ? 16 : 12)) keys /= 2;
  return keys;
}

// x, which the compiler has in a register until it was used for the last time, and does not read again.
TG_INLINE Vec held(Vec x) {
#if defined(__AVX2__)
  asm("" : "+x"(x));
#endif
  return x;
}

TG_INLINE void store_sums(const Vec (&part)[kLanes], float *to) { store(to, sums(part)); }
#if defined(__AVX2__) && !defined(__AVX512F__)
// Where registers are few, what is done with leaves them before the next keys come: else GCC has the sums of those in memory.
constexpr bool kFolds = true;
TG_INLINE void store_sums(const Vec (&part)[2], float *to) {
  const __m256 a = _mm256_hadd_ps(part[0], part[1]);
  const __m128 halves = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  _mm_storel_pi(reinterpret_cast<__m64 *>(to), _mm_hadd_ps(halves, halves));
}
TG_INLINE void store_sums(const Vec (&part)[4], float *to) {
  const __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(part[0], part[1]), _mm256_hadd_ps(part[2], part[3]));
  _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1)));
}
#else
constexpr bool kFolds = false;
#endif

// A vector of numbers that are taken kChunk at a time: first the lower half and then the upper one, as they lie, but of bfloat16
// those with even places, whose bits are moved up, and then those with odd ones, whose bits are where they belong. Queries and
// sums of values have that order too, `turned`.
TG_INLINE Vec half_of(const float *chunk, int half) { return load(chunk + half * kLanes); }
TG_INLINE Vec half_of(const Half *chunk, int half) { return load(chunk + half * kLanes); }
TG_INLINE Vec half_of(const Bf16 *chunk, int half) {
  UVec both;
#if defined(__AVX2__) && !defined(__AVX512F__)
  // The instructions themselves: GCC would read once, and keep that and what is cut out in registers that sums have use for.
  alignas(32) static const uint32_t kUpper[8] = {0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000,
                                                 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000};
  const auto &from = *reinterpret_cast<const char(*)[32]>(chunk);
  if (half == 0) {
    asm("vmovdqu %1, %0\n\tvpslld $16, %0, %0" : "=x"(both) : "m"(from));
  } else {
    asm("vmovdqu %1, %0\n\tvpand %2, %0, %0" : "=&x"(both) : "m"(from), "m"(kUpper));
  }
  return cast<Vec>(both);
#else
  memcpy(&both, chunk, sizeof both);
  return cast<Vec>(half == 0 ? both << 16 : both & 0xffff0000u);
#endif
}
template <typename T>
constexpr bool turned = false;
template <>
constexpr bool turned<Bf16> = true;

// The products of so many queries, `stride` apart, with kLanes keys, to `scores`, kUnit apart; all begin at whole chunks and are
// padded with zeros. A function of its own, as the next one, so that the compiler finds registers for its sums and addresses.
template <int queries, typename T>
__attribute__((noinline)) void products(const float *query, int64_t stride, const T *const *keys, int64_t dim, float *scores) {
  constexpr int kKeys = keys_of(queries);
  constexpr bool kAtOnce = kFolds || kKeys == kLanes;
  Vec total[queries][kLanes];
#pragma GCC unroll 8
  for (int first = 0; first < kLanes; first += kKeys) {
    Vec part[queries][kKeys] = {};
    for (int64_t d = 0; d < dim; d += kChunk) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++) {
        Vec numbers[queries];
#pragma GCC unroll 4
        for (int r = 0; r < queries; r++) numbers[r] = held(load(query + r * stride + d + half * kLanes));
#pragma GCC unroll 16
        for (int i = 0; i < kKeys; i++) {
          const Vec key = half_of(keys[first + i] + d, half);
#pragma GCC unroll 4
          for (int r = 0; r < queries; r++) add_product(part[r][i], numbers[r], key);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < queries; r++) {
      if constexpr (kAtOnce) {
        store_sums(part[r], scores + r * kUnit + first);
      } else {
#pragma GCC unroll 16
        for (int i = 0; i < kKeys; i++) total[r][first + i] = part[r][i];
      }
    }
  }
  if constexpr (kAtOnce) return;
#pragma GCC unroll 4
  for (int r = 0; r < queries; r++) store(scores + r * kUnit, sums(total[r]));
}

constexpr int64_t kBeside = 16;  // keys whose values are added for one head, then for the next
// Chunks of values at a time, so that the sums stay in registers.
constexpr int kWidest = 2;
constexpr int chunks_of(int rows) { return kRegisters == 32 || rows < 4 ? kWidest : 1; }

// out[row] += sum over keys of weights[row][key] * values[key], for `rows` rows and `chunks` chunks from a column on.
template <int rows, int chunks, typename V>
__attribute__((noinline)) void add_block(const float *weights, const V *const *values, int64_t count, int64_t column, float *out,
                                         int64_t stride) {
  constexpr int kVectors = 2 * chunks;
  Vec total[rows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++) {
#pragma GCC unroll 16
    for (int c = 0; c < kVectors; c++) total[r][c] = load(out + r * stride + column + c * kLanes);
  }
  for (int64_t key = 0; key < count; key++) {
    Vec weight[rows];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) weight[r] = splat(weights[r * kUnit + key]);
#pragma GCC unroll 16
    for (int c = 0; c < kVectors; c++) {
      const Vec value = half_of(values[key] + column + c / 2 * kChunk, c % 2);
#pragma GCC unroll 16
      for (int r = 0; r < rows; r++) add_product(total[r][c], weight[r], value);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < rows; r++) {
#pragma GCC unroll 16
    for (int c = 0; c < kVectors; c++) store(out + r * stride + column + c * kLanes, total[r][c]);
  }
}

// The same for all columns.
template <int rows, typename V>
TG_INLINE void add_values(const Attention &form, const float *weights, const V *const *values, int64_t count, float *out,
                          CacheAhead &ahead) {
  constexpr int kChunks = chunks_of(rows);
  int64_t column = 0;
  for (; column + kChunks * kChunk <= form.value_lanes; column += kChunks * kChunk) {
    ahead.ask();
    add_block<rows, kChunks>(weights, values, count, column, out, form.padded_value);
  }
  for (; column < form.value_lanes; column += kChunk) {
    ahead.ask();
    add_block<rows, 1>(weights, values, count, column, out, form.padded_value);
  }
}

// Where number i of so many stands when its chunk is turned, as numbers of T are.
template <typename T>
TG_INLINE int64_t place_of(int64_t i) {
  const int64_t within = i % kChunk;
  return turned<T> ? i - within + within / 2 + within % 2 * kLanes : i;
}

// The task's queries in whole chunks, in the order of keys of T.
template <typename T, typename Q>
void take_queries(const Attention &form, const Task &task, const Run &run, float *to) {
  memset(to, 0, task.count * form.padded_dim * sizeof(float));
  for (int64_t row = 0; row < task.count; row++, to += form.padded_dim) {
    const int64_t at = task.first + row, head = task.kv_head * form.share + at % form.share;
    const Q *from = run.row<Q>(form.q, task.token + at / form.share) + head * form.head_dim;
    int64_t i = 0;
    if constexpr (turned<Q> || !turned<T>) {
      for (; i + kChunk <= form.head_dim; i += kChunk) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
          store(to + i + half * kLanes, turned<T> ? half_of(from + i, half) : load(from + i + half * kLanes));
        }
      }
    }
    for (; i < form.head_dim; i++) to[place_of<T>(i)] = to_float(from[i]);
  }
}

// Sums of values come into their order.
template <typename T>
void turn_back(const Attention &form, const Task &task, const Partial &partial) {
  each_head(form, task, partial, [&](const Task &one, const Partial &own) {
    for (int64_t row = 0; row < one.count; row++) {
      for (int64_t column = 0; column < form.value_lanes; column += kChunk) {
        float chunk[kChunk], *at = own.out + row * form.padded_value + column;
        memcpy(chunk, at, sizeof chunk);
        for (int64_t i = 0; i < kChunk; i++) at[i] = chunk[place_of<T>(i)];
      }
    }
  });
}

// S is what the cache has, T what it becomes.
template <typename T, typename S>
void attend(const Attention &form, const Task &task, const Run &run, const Workspace &space, const Partial &partial, int64_t first,
            int64_t last, bool asked, const Task *then) {
  const auto query_of = [&](int64_t head) { return reinterpret_cast<float *>(space.query) + head * kRows * form.padded_dim; };
  const auto scores_of = [&](int64_t head) { return space.scores + head * kRows * kUnit; };
  each_head(form, task, partial, [&](const Task &one, const Partial &) {
    float *to = query_of(one.kv_head - task.kv_head);
    form.q_dtype == TG_BF16 ? take_queries<T, Bf16>(form, one, run, to) : take_queries<T, float>(form, one, run, to);
  });
  const int64_t blocks = task.heads * ceil_div(task.count, kQueries);
  const auto calls = [&](int64_t count) {
    return Calls{blocks * ceil_div(count, kLanes), blocks * ceil_div(count, kBeside) * ceil_div(form.value_lanes, kWidest * kChunk)};
  };
  each_unit(form, task, first, last, asked, then, calls,
            [&](CacheUnit &unit, int64_t key, CacheAhead &with_keys, CacheAhead &with_values) {
    int64_t *rows = unit.rows;
    const int64_t count = unit.count, padded = round_up(count, kLanes);
    for (int64_t i = count; i < padded; i++) rows[i] = rows[count - 1];  // read, then masked
    // All heads of some rows, then all of the next: what is read in the order in which it lies comes by itself, and faster.
    for (int64_t i = 0; i < padded; i += kLanes) {
      for (int64_t head = 0; head < task.heads; head++) {
        const T *keys[kLanes];
        locate<T, S>(cached_keys(form, task.kv_head + head), rows + i, kLanes, reinterpret_cast<T *>(space.keys), keys);
        by_blocks<kQueries>(task.count, [&](auto queries, int64_t row) {
          with_keys.ask();
          products<decltype(queries)::value>(query_of(head) + row * form.padded_dim, form.padded_dim, keys, form.padded_dim,
                                             scores_of(head) + row * kUnit + i);
        });
      }
    }
    each_head(form, task, partial, [&](const Task &one, const Partial &own) {
      const int64_t head = one.kv_head - task.kv_head;
      for (int64_t row = 0; row < one.count; row += kLanes) {
        float *scores = scores_of(head) + row * kUnit;
        const int64_t here = least(kLanes, one.count - row);
        if (form.packs && here <= kQueries) {
          weigh<float, true, kQueries>(form, one, own, row, here, scores, scores, kUnit, key, count, padded);
        } else {
          weigh<float>(form, one, own, row, here, scores, scores, kUnit, key, count, padded);
        }
      }
    });
    for (int64_t i = 0; i < count; i += kBeside) {
      const int64_t beside = least(kBeside, count - i);
      for (int64_t head = 0; head < task.heads; head++) {
        const T *values[kBeside];
        const Cached of_values = cached_values(form, task.kv_head + head, form.value_lanes);
        locate<T, S>(of_values, rows + i, beside, reinterpret_cast<T *>(space.values), values);
        by_blocks<kQueries>(task.count, [&](auto queries, int64_t row) {
          add_values<decltype(queries)::value>(form, scores_of(head) + row * kUnit + i, values, beside,
                                               partial.out + (head * kRows + row) * form.padded_value, with_values);
        });
      }
    }
  });
  if constexpr (turned<T>) turn_back<T>(form, task, partial);
}

}  // namespace

void attend_by_vectors(const Attention &form, const Task &task, const Run &run, const Workspace &space, const Partial &partial,
                       int64_t first, int64_t last, bool asked, const Task *then) {
  if (form.cache_dtype == TG_I8) return attend<float, int8_t>(form, task, run, space, partial, first, last, asked, then);
  if (form.cache_dtype == TG_BF16) return attend<Bf16, Bf16>(form, task, run, space, partial, first, last, asked, then);
  if (form.cache_dtype == TG_F16) return attend<Half, Half>(form, task, run, space, partial, first, last, asked, then);
  attend<float, float>(form, task, run, space, partial, first, last, asked, then);
}

}  // namespace tg::TG_ISA
