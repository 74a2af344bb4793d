// The parts of attention: how a step's work is cut up, and what is done to scores between the two products.
//
// A task is a run of at most `kRows` rows of one segment and one head of the cache; a row is a query head of a token, token
// after token, so that the heads which share keys and values share their reading. A task goes through its keys in units and keeps for each
// row the largest score, the sum of weights and the weighted sum of values (arXiv 2205.14135), so any run of units can be done
// by any worker and joined with the others afterwards.
#pragma once

#include "../count.h"
#include "rows.h"

namespace tg::TG_ISA {

#if defined(__AMX_BF16__)
constexpr bool kHasTiles = true;
#else
constexpr bool kHasTiles = false;
#endif

// Whether few rows in bfloat16 have code of their own.
#if defined(__AVX512BF16__)
constexpr bool kHasFew = true;
#else
constexpr bool kHasFew = false;
#endif

constexpr int64_t kUnit = 64;           // keys of a unit of vector code
constexpr int64_t kChunk = 2 * kLanes;  // numbers of a key that it takes at a time
constexpr int64_t kManyUnit = kHasTiles ? 256 : 128;  // keys of a unit of packed code
constexpr int64_t kRows = 16;           // rows of a head in a task of few, by vector or by tile code
constexpr int64_t kFewUnit = 64;        // keys of a unit of that
constexpr int64_t kBlock = kLanes == 8 ? 24 : 32;                     // rows of packed code whose scores are worked on at a time
constexpr int64_t kManyRows = (kLanes == 8 ? 6 : kHasTiles ? 8 : 4) * kBlock;  // rows of a task of it
constexpr int64_t kMostWorkers = 256;

constexpr float kLog2e = 1.44269504088896341f;
constexpr float kNever = -__builtin_inff();

#if defined(__AVX2__)
constexpr bool kPacks = true;
#else
constexpr bool kPacks = false;
#endif

// An operation's numbers.
struct Attention {
  int64_t q, y, heads, kv_heads, share, head_dim, value_dim, window, distances;
  int64_t key_stride, value_stride;
  int64_t padded_dim;    // head_dim, in whole vectors of either dtype, and chunks
  int64_t padded_value;  // from row to row of the sums of values
  int64_t value_lanes;   // value_dim, in whole chunks
  int64_t cache_dtype, q_dtype;
  const char *keys, *values;
  const float *key_scales, *value_scales;  // of a cache of integers
  const float *slopes, *sinks, *biases;
  float scale, cap;
  const tg_group *group;
  const int64_t *lengths;  // [segments] tokens of each that are worked on: its last ones
  int64_t together;  // heads of the cache that a task of few rows has
  bool packs;  // bfloat16 throughout, where many rows are multiplied by packed code

  // Of a number in the cache.
  TG_INLINE int64_t cached_bytes() const { return cache_dtype == TG_I8 ? 1 : cache_dtype == TG_F32 ? 4 : 2; }
  TG_INLINE bool is_plain() const { return cap == 0 && slopes == nullptr && biases == nullptr && scale > 0; }
};

// Rows first to first + count of a segment and a head of the cache, or of some heads one after the other; they see keys from
// `begin` to `end` (positions).
struct Task {
  int64_t segment, kv_head, tile;
  int64_t first, count;
  int64_t token, start;  // of the first of the segment's tokens that are worked on: its index, and its position
  int64_t output;        // the row of y for it
  int64_t begin, end;
  int64_t units;
  int64_t heads;
  bool many, few;  // by packed code; of few rows by products of pairs; neither: by vector code
  int64_t weight;  // of a unit: about the cycles that it takes

  TG_INLINE int64_t unit_keys() const { return few ? kFewUnit : many ? kManyUnit : kUnit; }
};

// What is known of a task's rows after some of its units. Scores are in units of log2(e).
struct Partial {
  float *top;    // [rows] the largest score
  float *total;  // [rows] sum of exp2(score - top)
  float *out;    // [rows, padded_value] sum of exp2(score - top) * value
};

// Calls f with the task of each head by itself, and with that head's part of the partial.
template <typename F>
TG_INLINE void each_head(const Attention &form, const Task &task, const Partial &partial, const F &f) {
  Task one = task;
  one.heads = 1;
  for (int64_t row = 0; one.kv_head < task.kv_head + task.heads; one.kv_head++, row += kRows) {
    f(one, Partial{partial.top + row, partial.total + row, partial.out + row * form.padded_value});
  }
}

// A worker's scratch.
struct Workspace {
  Partial head;               // of a task that another worker has begun; in memory that all see
  Partial tail, whole;        // of one that another goes on with; of any other
  float *scores;              // [rows, kUnit or kFewUnit], or [kBlock, kManyUnit]
  char *query;                // [rows, padded_dim] float32 or bfloat16
  char *keys;                 // a unit's keys (and values), padded; or packed, and behind them padded
  char *values;
  char *weights;  // as scores, bfloat16
};

// 2^x for x <= 0, within 2 units in the last place; 0 below -126.
TG_INLINE Vec exp2_accurate(Vec x) {
  const Vec t = x < -126.0f ? splat(-126.0f) : x;
  const Vec n = round(t), f = t - n;
  Vec p = splat(1.5353362e-4f);
  p = fma(p, f, splat(1.3398874e-3f));
  p = fma(p, f, splat(9.6184370e-3f));
  p = fma(p, f, splat(5.5503324e-2f));
  p = fma(p, f, splat(2.4022648e-1f));
  p = fma(p, f, splat(6.9314720e-1f));
  p = fma(p, f, splat(1.0f));
  const Vec y = p * cast<Vec>((__builtin_convertvector(n, IVec) + 127) << 23);
  return x < -126.0f ? Vec{} : y;
}

// The same within 2^-12, for weights that are rounded to bfloat16 anyway.
TG_INLINE Vec exp2_fast(Vec x) {
#if defined(__AVX512F__)
  const Vec f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // from 0 to 1
  Vec p = fma(splat(7.8024459e-2f), f, splat(2.2606725e-1f));
  p = fma(p, f, splat(6.958335e-1f));
  p = fma(p, f, splat(9.9992522e-1f));
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, splat(-126.0f), _CMP_NLT_UQ), p, x);  // by 2 to the whole below x
#elif defined(__AVX2__)
  const Vec t = _mm256_max_ps(splat(-127.0f), x), n = _mm256_round_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), f = t - n;
  Vec p = fma(splat(5.5171624e-2f), f, splat(2.4261112e-1f));
  p = fma(p, f, splat(6.9326099e-1f));
  p = fma(p, f, splat(9.9992807e-1f));
  const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  // 2^-127 has no exponent: it is taken for 0, as is all below.
  return p * cast<Vec>(exponent);
#else
  return exp2_accurate(x);
#endif
}

// Lanes of x and y in turn, and their neighbours `bit` lanes on: what is left of two vectors when each is folded once.
template <int bit, typename F>
TG_INLINE Vec folded(Vec x, Vec y, const F &f) {
#if defined(__clang__)
  Vec u, v;
  for (int i = 0; i < kLanes; i++) {
    u[i] = i & bit ? y[i] : x[i];
    v[i] = i & bit ? y[i ^ bit] : x[i ^ bit];
  }
#else
  IVec straight, crossed;
  for (int i = 0; i < kLanes; i++) {
    straight[i] = i & bit ? i + kLanes : i;
    crossed[i] = i & bit ? (i ^ bit) + kLanes : i ^ bit;
  }
  const Vec u = __builtin_shuffle(x, y, straight), v = __builtin_shuffle(x, y, crossed);
#endif
  return f(u, v);
}
// x with its lanes that are `bit`, twice that, ... apart folded together.
template <int bit, typename F>
TG_INLINE Vec folded_within(Vec x, const F &f) {
  if constexpr (bit >= kLanes) {
    return x;
  } else {
    return folded_within<2 * bit>(folded<bit>(x, x, f), f);
  }
}
// Lane i of the result is a[i % count] with all its lanes folded together.
template <int count, int bit = count / 2, typename F>
TG_INLINE Vec fold(const Vec *a, const F &f) {
  if constexpr (bit == 0) {
    return folded_within<count>(a[0], f);
  } else {
    Vec halves[bit];
#pragma GCC unroll 16
    for (int i = 0; i < bit; i++) halves[i] = folded<bit>(a[i], a[i + bit], f);
    return fold<count, bit / 2>(halves, f);
  }
}
template <int count = kLanes>
TG_INLINE Vec sums(const Vec *a) {
  return fold<count>(a, [](Vec x, Vec y) { return x + y; });
}
template <int count = kLanes>
TG_INLINE Vec tops(const Vec *a) {
  return fold<count>(a, [](Vec x, Vec y) { return max(x, y); });
}

TG_INLINE float exp2_one(float x) { return x == kNever ? 0.0f : exp2_accurate(splat(x))[0]; }

void fill(float *to, int64_t begin, int64_t end, float value);
// Everything but the scale that a form does to the scores of a row, which then are in units of log2(e).
void apply_form(const Attention &form, float *scores, int64_t count, int64_t head, int64_t key, int64_t position);

// Scores [rows, count], `stride` from row to row, of at most kMost rows from `row` on and keys from position `key` on become
// weights: those out of sight, and those up to `padded`, are 0. W: float in place, or Bf16 into `weights`. The rows' other
// numbers are brought up to the new largest scores. fast: weights are as exact as bfloat16 asks for.
template <typename W, bool fast = sizeof(W) == 2, int kMost = kLanes>
TG_INLINE void weigh(const Attention &form, const Task &task, const Partial &partial, int64_t row, int64_t rows, float *scores,
                     W *weights, int64_t stride, int64_t key, int64_t count, int64_t padded) {
  const bool plain = form.is_plain();
  const float scale = plain ? form.scale * kLog2e : 1.0f;
  Vec found[kMost];
  int64_t position = task.start + (task.first + row) / form.share, head = (task.first + row) % form.share;
  for (int64_t i = 0; i < kMost; i++) {
    found[i] = splat(kNever);
    if (i >= rows) continue;
    float *own = scores + i * stride;
    const int64_t oldest = form.window > 0 ? most(0, position - form.window + 1) : 0;
    const int64_t low = least(most(oldest - key, 0), count), high = least(most(position + 1 - key, low), count);
    if (!plain) apply_form(form, own, count, task.kv_head * form.share + head, key, position);
    if (low > 0) fill(own, 0, low, kNever);
    if (high < padded) fill(own, high, padded, kNever);
    for (int64_t at = 0; at < padded; at += kLanes) found[i] = max(load(own + at), found[i]);  // a NaN does no harm here
    if (++head == form.share) head = 0, position++;
  }
  const Vec before = load(partial.top + row), top = max(tops<kMost>(found) * scale, before);
  const Vec safe = top == kNever ? Vec{} : top;  // nothing to see, now or before
  const Vec shrink = exp2_accurate(before - safe);
  store(partial.top + row, top);
  float offset[kLanes], factor[kLanes];
  store(offset, -safe);
  store(factor, shrink);
  for (int64_t i = 0; i < kMost; i++) {
    found[i] = Vec{};
    if (i >= rows) continue;
    const float *own = scores + i * stride;
    W *to = weights + i * stride;
    const Vec less = splat(offset[i]);
    const auto weight = [&](int64_t at) {
      const Vec x = fma(load(own + at), splat(scale), less);
      const Vec w = fast ? exp2_fast(x) : exp2_accurate(x);
      found[i] += w;
      return w;
    };
    int64_t at = 0;
#if defined(__AVX512BF16__)
    if constexpr (sizeof(W) == 2) {
      for (; at + 2 * kLanes <= padded; at += 2 * kLanes) {
        const Vec low = weight(at), high = weight(at + kLanes);
        _mm512_storeu_si512(to + at, (__m512i)_mm512_cvtne2ps_pbh(high, low));
      }
    }
#endif
    for (; at < padded; at += kLanes) store(to + at, weight(at));
    if (factor[i] == 1.0f) continue;
    float *out = partial.out + (row + i) * form.padded_value;
    for (int64_t at = 0; at < form.padded_value; at += kLanes) store(out + at, load(out + at) * factor[i]);
  }
  store(partial.total + row, fma(load(partial.total + row), shrink, sums<kMost>(found)));
}

// Units first to last of a task, into a partial that has been cleared. then: what this worker goes on with, for whose cache is
// asked early; NULL where that is nothing. asked: it was so of this task.
void attend_by_vectors(const Attention &form, const Task &task, const Run &run, const Workspace &space, const Partial &partial,
                       int64_t first, int64_t last, bool asked, const Task *then);
void attend_many(const Attention &form, const Task &task, const Run &run, const Workspace &space, const Partial &partial,
                 int64_t first, int64_t last);
// The same of few rows, by tiles (attention_few.cpp) or by products of pairs (attention_pairs.cpp).
void attend_few(const Attention &form, const Task &task, const Run &run, const Workspace &space, const Partial &partial,
                int64_t first, int64_t last, bool asked, const Task *then);

// Goes through the cache's rows of consecutive positions of a segment.
struct Rows {
  const int32_t *table;
  int64_t block_size, block, offset;

  TG_INLINE Rows(const tg_group &group, int64_t segment, int64_t position)
      : table(group.tables + segment * group.table_stride),
        block_size(group.block_size),
        block(position / group.block_size),
        offset(position % group.block_size) {}
  // The row of the position, and on to the next.
  TG_INLINE int64_t next() {
    const int64_t row = table[block] * block_size + offset;
    if (++offset == block_size) {
      offset = 0;
      block++;
    }
    return row;
  }
};

// Numbers of a cache for one head: where they lie, and what attention takes of them.
struct Cached {
  const char *address;
  const float *scales;  // of integers
  int64_t stride, kv_heads, head, dim;
  int64_t padded;  // dim in whole vectors
};
TG_INLINE Cached cached_keys(const Attention &form, int64_t head) {
  return {form.keys, form.key_scales, form.key_stride, form.kv_heads, head, form.head_dim, form.padded_dim};
}
TG_INLINE Cached cached_values(const Attention &form, int64_t head, int64_t padded) {
  return {form.values, form.value_scales, form.value_stride, form.kv_heads, head, form.value_dim, padded};
}

// Where the numbers of some rows lie as T, S being what the cache has: there, or in `copies` where they are integers or end within a
// vector, which then goes on with zeros.
template <typename T, typename S>
TG_INLINE void locate(const Cached &cached, const int64_t *rows, int64_t count, T *copies, const T **places) {
  const S *from = reinterpret_cast<const S *>(cached.address) + cached.head * cached.dim;
  for (int64_t i = 0; i < count; i++) {
    const S *numbers = from + rows[i] * cached.stride;
    T *copy = copies + i * cached.padded;
    places[i] = copy;
    if constexpr (sizeof(S) == 1) {
      const float scale = cached.scales[rows[i] * cached.kv_heads + cached.head];
      by_vector(0, cached.dim, [&](int64_t at, int lanes) { store_lanes(copy + at, load_lanes(numbers + at, lanes) * scale, lanes); });
    } else if (cached.dim == cached.padded) {
      places[i] = numbers;
      continue;
    } else {
      memcpy(copy, numbers, cached.dim * sizeof(T));
    }
    memset(copy + cached.dim, 0, (cached.padded - cached.dim) * sizeof(T));
  }
}

}  // namespace tg::TG_ISA
