// Attention of few rows on processors with AMX, as of sequences that go on by a token.
//
// Keys are the left side of their product as they lie in the cache, 16 of them to a tile; its right side is queries, turned once.
// Scores come key by key and are turned back. Values are added up by vectors in float32: to pack them as the right side of a
// product takes twice as long as that, and so do vectors' products of pairs. Tiles of all heads are stored before the first is
// read, which would have to wait for it. What is left to wait for is memory.
#include "attention_ahead.h"
#include "attention_pack.h"

namespace tg::TG_ISA {

#if defined(__AMX_BF16__)

namespace {

constexpr int kScores = 0, kQuery = 4, kKeys = 6;  // tiles: four, one, two
constexpr int64_t kGroups = kFewUnit / 16;         // of 16 keys in a unit
static_assert(kGroups == 4);
// How often memory is asked while 32 numbers of all keys are multiplied, and before weights are found, where it is once for each
// value: in proportion to the time these take.
constexpr int64_t kOfKeys = 16, kOfWeights = 24;

struct FewConfig : TileConfig {
  explicit FewConfig(int64_t columns) {
    for (int tile = 0; tile < kKeys; tile++) {
      row_bytes[tile] = static_cast<uint16_t>(columns * 4);
      rows[tile] = 16;
    }
  }
};

// [dims / 32][16 pairs of them][columns][2]
void turn_queries(const Attention &form, const Task &task, const Run &run, int64_t columns, Bf16 *to) {
  memset(to, 0, form.padded_dim * columns * sizeof(Bf16));
  for (int64_t row = 0; row < task.count; row++) {
    const int64_t at = task.first + row, head = task.kv_head * form.share + at % form.share;
    const Bf16 *from = run.row<Bf16>(form.q, task.token + at / form.share) + head * form.head_dim;
    for (int64_t d = 0; d < form.head_dim; d += 2) {
      memcpy(to + (d / 2 * columns + row) * 2, from + d, least(2, form.head_dim - d) * sizeof(Bf16));
    }
  }
}

// Numbers of up to 16 tokens as bfloat16, with the same distance from one to the next, in numbers.
struct Sixteen {
  const Bf16 *from;
  int64_t stride;
};

// A unit's rows of the cache by sixteens, and which of these follow each other there.
struct Groups {
  const int64_t *rows;
  int64_t count, groups;
  bool even[kGroups];

  explicit Groups(const CacheUnit &unit) : rows(unit.rows), count(unit.count), groups(ceil_div(unit.count, 16)) {
    for (int64_t g = 0; g < groups; g++) {
      bool follows = true;
      for (int64_t i = g * 16; i < least(g * 16 + 16, count); i++) follows = follows && rows[i] == rows[g * 16] + i - g * 16;
      even[g] = follows;
    }
  }
  int64_t count_of(int64_t g) const { return least(16, count - g * 16); }

  // As they lie, or in `copies`, [16][padded] numbers for each group, with zeros behind the last row. all: that there are 16.
  TG_INLINE Sixteen at(const Attention &form, const Cached &cached, int64_t g, bool all, Bf16 *copies) const {
    if (form.cache_dtype == TG_BF16 && even[g] && cached.dim == cached.padded && (!all || count_of(g) == 16)) {
      const Bf16 *from = reinterpret_cast<const Bf16 *>(cached.address) + cached.head * cached.dim;
      return {from + rows[g * 16] * cached.stride, cached.stride};
    }
    Bf16 *to = copies + g * 16 * cached.padded;
    copy(form, cached, g, to);
    return {to, cached.padded};
  }

 private:
  void copy(const Attention &form, const Cached &cached, int64_t g, Bf16 *to) const {
    const int64_t filled = count_of(g);
    const Bf16 *places[16];
    if (form.cache_dtype == TG_I8) {
      locate<Bf16, int8_t>(cached, rows + g * 16, filled, to, places);
    } else {
      locate<Bf16, Bf16>(cached, rows + g * 16, filled, to, places);
      for (int64_t i = 0; i < filled; i++) {
        if (places[i] != to + i * cached.padded) memcpy(to + i * cached.padded, places[i], cached.padded * sizeof(Bf16));
      }
    }
    memset(to + filled * cached.padded, 0, (16 - filled) * cached.padded * sizeof(Bf16));
  }
};

// Scores [kGroups][16 keys][columns] of a unit's keys and the turned queries.
template <int kColumns, typename F>
TG_INLINE void score_keys(const Bf16 *turned, const Sixteen *keys, int64_t groups, int64_t chunks, float *scores,
                          const F &before) {
  tile_zero<kScores>(), tile_zero<kScores + 1>(), tile_zero<kScores + 2>(), tile_zero<kScores + 3>();
  for (int64_t c = 0; c < chunks; c++) {
    before();
    tile_load<kQuery>(turned + c * 32 * kColumns, kColumns * 4);
    tile_load<kKeys>(keys[0].from + c * 32, keys[0].stride * 2);
    tile_dot<false, kScores, kKeys, kQuery>();
    if (groups < 2) continue;
    tile_load<kKeys + 1>(keys[1].from + c * 32, keys[1].stride * 2);
    tile_dot<false, kScores + 1, kKeys + 1, kQuery>();
    if (groups < 3) continue;
    tile_load<kKeys>(keys[2].from + c * 32, keys[2].stride * 2);
    tile_dot<false, kScores + 2, kKeys, kQuery>();
    if (groups < 4) continue;
    tile_load<kKeys + 1>(keys[3].from + c * 32, keys[3].stride * 2);
    tile_dot<false, kScores + 3, kKeys + 1, kQuery>();
  }
  constexpr int64_t kNext = 16 * kColumns;
  tile_store<kScores>(scores, kColumns * 4);
  tile_store<kScores + 1>(scores + kNext, kColumns * 4);
  tile_store<kScores + 2>(scores + 2 * kNext, kColumns * 4);
  tile_store<kScores + 3>(scores + 3 * kNext, kColumns * 4);
}

// Scores [16 keys][columns] become [columns][16], kFewUnit from row to row.
template <int kColumns>
TG_INLINE void turn_scores(const float *from, float *to) {
  if constexpr (kColumns == 4) {
    const __m512i pick = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i two = _mm512_set1_epi32(2);
    const __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + 16);
    const __m512i c = _mm512_loadu_si512(from + 32), d = _mm512_loadu_si512(from + 48);
    const __m512i ab = _mm512_permutex2var_epi32(a, pick, b), cd = _mm512_permutex2var_epi32(c, pick, d);
    const __m512i later = _mm512_add_epi32(pick, two);
    const __m512i ab2 = _mm512_permutex2var_epi32(a, later, b), cd2 = _mm512_permutex2var_epi32(c, later, d);
    _mm512_storeu_si512(to, _mm512_shuffle_i64x2(ab, cd, 0x44));
    _mm512_storeu_si512(to + kFewUnit, _mm512_shuffle_i64x2(ab, cd, 0xee));
    _mm512_storeu_si512(to + 2 * kFewUnit, _mm512_shuffle_i64x2(ab2, cd2, 0x44));
    _mm512_storeu_si512(to + 3 * kFewUnit, _mm512_shuffle_i64x2(ab2, cd2, 0xee));
  } else {
    __m512i tile[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) tile[i] = _mm512_loadu_si512(from + i * 16);
    transpose(tile);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) _mm512_storeu_si512(to + i * kFewUnit, tile[i]);
  }
}

// Of 32 numbers in their order those with even places, and those with odd ones; and back.
struct Parted {
  Vec even, odd;
};
TG_INLINE Parted part(Vec low, Vec high) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  return {_mm512_permutex2var_ps(low, even, high), _mm512_permutex2var_ps(low, odd, high)};
}
TG_INLINE void join(const Parted &parted, float *to) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  store(to, _mm512_permutex2var_ps(parted.even, low, parted.odd));
  store(to + kLanes, _mm512_permutex2var_ps(parted.even, high, parted.odd));
}

// out[row] += sum over keys of weights[row][key] * values[key], for so many rows and 32 columns a chunk. A vector of the cache has
// two of floats: the even numbers, whose bits are moved up, and the odd ones, whose bits are where they belong.
template <int kRowsOf, int kChunks, typename F>
TG_INLINE void add_values(const float *weights, const Sixteen *values, int64_t count, float *out, int64_t stride,
                          const F &before) {
  Vec total[kRowsOf][2 * kChunks];
#pragma GCC unroll 4
  for (int r = 0; r < kRowsOf; r++) {
#pragma GCC unroll 2
    for (int c = 0; c < kChunks; c++) {
      const Parted parted = part(load(out + r * stride + c * 32), load(out + r * stride + c * 32 + kLanes));
      total[r][2 * c] = parted.even, total[r][2 * c + 1] = parted.odd;
    }
  }
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  for (int64_t first = 0; first < count; first += 16, values++) {
    const Bf16 *from = values->from;
    const int64_t last = least(first + 16, count);
    for (int64_t key = first; key < last; key++, from += values->stride) {
      before();
      Vec numbers[2 * kChunks];
#pragma GCC unroll 2
      for (int c = 0; c < kChunks; c++) {
        const __m512i both = _mm512_loadu_si512(from + c * 32);
        numbers[2 * c] = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
        numbers[2 * c + 1] = _mm512_castsi512_ps(_mm512_and_si512(both, upper));
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRowsOf; r++) {
        const Vec weight = splat(weights[r * kFewUnit + key]);
#pragma GCC unroll 4
        for (int c = 0; c < 2 * kChunks; c++) total[r][c] = fma(weight, numbers[c], total[r][c]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRowsOf; r++) {
#pragma GCC unroll 2
    for (int c = 0; c < kChunks; c++) join({total[r][2 * c], total[r][2 * c + 1]}, out + r * stride + c * 32);
  }
}

// The same for all columns.
template <int kRowsOf, typename F>
TG_INLINE void add_values(const Attention &form, const float *weights, const Sixteen *values, int64_t count, float *out,
                          const F &before) {
  Sixteen columns[kGroups];
  int64_t column = 0;
  const auto from = [&]() {
    for (int64_t g = 0; g < ceil_div(count, 16); g++) columns[g] = {values[g].from + column, values[g].stride};
    return columns;
  };
  for (; column + 64 <= form.padded_value; column += 64) {
    add_values<kRowsOf, 2>(weights, from(), count, out + column, form.padded_value, before);
  }
  for (; column < form.padded_value; column += 32) {
    add_values<kRowsOf, 1>(weights, from(), count, out + column, form.padded_value, before);
  }
}

// kColumns: of a tile of queries, at least the task's rows.
template <int kColumns>
void attend(const Attention &form, const Task &task, const Run &run, const Workspace &space, const Partial &partial,
            int64_t first, int64_t last, const Task *then) {
  constexpr int64_t kHeads = kColumns == 4 ? kManyRows / kRows : 1;  // whose scores wait to be turned
  FewConfig(kColumns).use();
  Bf16 *query = reinterpret_cast<Bf16 *>(space.query);
  Bf16 *key_copies = reinterpret_cast<Bf16 *>(space.keys), *value_copies = reinterpret_cast<Bf16 *>(space.values);
  alignas(64) float found[kHeads][kGroups][16 * kColumns];
  each_head(form, task, partial, [&](const Task &one, const Partial &) {
    turn_queries(form, one, run, kColumns, query + (one.kv_head - task.kv_head) * form.padded_dim * kColumns);
  });
  const int64_t chunks = form.padded_dim / 32;
  Rows walk(*form.group, task.segment, task.begin + first * kFewUnit);
  CacheUnit units[2];
  units[first & 1].find(task, first, walk);
  for (int64_t unit = first; unit < last; unit++) {
    const Groups groups(units[unit & 1]);
    const int64_t key = task.begin + unit * kFewUnit, padded = groups.groups * 16;
    CacheUnit &next = units[(unit + 1) & 1];
    next.count = 0;
    if (unit + 1 < last) {
      next.find(task, unit + 1, walk);
    } else if (then != nullptr) {
      Rows other(*form.group, then->segment, then->begin);
      next.find(*then, 0, other);
    }
    CacheAhead ahead(form, unit + 1 < last || then == nullptr ? task : *then, next, CacheAhead::kBoth,
                     task.heads * (chunks * kOfKeys + kOfWeights + groups.count * ceil_div(task.count, 4)));
    const auto scores_of = [&](int64_t head) { return space.scores + head * kRows * kFewUnit; };
    for (int64_t begin = 0; begin < task.heads; begin += kHeads) {
      const int64_t end = least(begin + kHeads, task.heads);
      for (int64_t head = begin; head < end; head++) {
        Sixteen keys[kGroups];
        const Cached of_keys = cached_keys(form, task.kv_head + head);
        for (int64_t g = 0; g < groups.groups; g++) keys[g] = groups.at(form, of_keys, g, true, key_copies);
        score_keys<kColumns>(query + head * form.padded_dim * kColumns, keys, groups.groups, chunks, found[head - begin][0],
                                [&] { ahead.ask(kOfKeys); });
      }
      for (int64_t head = begin; head < end; head++) {
        for (int64_t g = 0; g < groups.groups; g++) turn_scores<kColumns>(found[head - begin][g], scores_of(head) + g * 16);
      }
    }
    each_head(form, task, partial, [&](const Task &one, const Partial &own) {
      const int64_t head = one.kv_head - task.kv_head;
      float *scores = scores_of(head);
      ahead.ask(kOfWeights);
      weigh<float, true, kColumns>(form, one, own, 0, one.count, scores, scores, kFewUnit, key, groups.count, padded);
      Sixteen values[kGroups];
      const Cached of_values = cached_values(form, one.kv_head, form.padded_value);
      for (int64_t g = 0; g < groups.groups; g++) values[g] = groups.at(form, of_values, g, false, value_copies);
      by_blocks<4>(one.count, [&](auto rows, int64_t row) {
        add_values<decltype(rows)::value>(form, scores + row * kFewUnit, values, groups.count,
                                          own.out + row * form.padded_value, [&] { ahead.ask(); });
      });
    });
  }
  tile_release();
}

}  // namespace

void attend_few_by_tiles(const Attention &form, const Task &task, const Run &run, const Workspace &space, const Partial &partial,
                         int64_t first, int64_t last, const Task *then) {
  if (task.count <= 4) return attend<4>(form, task, run, space, partial, first, last, then);
  attend<16>(form, task, run, space, partial, first, last, then);
}

#else

void attend_few_by_tiles(const Attention &, const Task &, const Run &, const Workspace &, const Partial &, int64_t, int64_t,
                         const Task *) {}

#endif

}  // namespace tg::TG_ISA
