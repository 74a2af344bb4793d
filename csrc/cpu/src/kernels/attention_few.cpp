// Attention of few rows by AMX tiles, as of sequences that go on by a token.
//
// Keys are the left side of their product as they lie in the cache, 16 of them; its right side is queries, turned once. Scores come
// key by key and are turned back. So nothing is packed but values, and what is left to wait for is memory.
#include "attention_ahead.h"
#include "attention_pack.h"

namespace tg::TG_ISA {

#if defined(__AMX_BF16__)

namespace {

constexpr int kFewScores = 0, kFewQuery = 2, kFewCached = 3, kFewWeights = 5, kFewSums = 6;  // two of each but one query and weights

struct FewConfig : TileConfig {
  FewConfig(int64_t count, int64_t columns) : TileConfig(64) {
    for (int tile = 0; tile < 8; tile++) {
      const bool of_cache = tile == kFewCached || tile == kFewCached + 1;
      row_bytes[tile] = static_cast<uint16_t>(tile <= kFewQuery ? columns * 4 : 64);
      rows[tile] = static_cast<uint8_t>(tile <= kFewQuery || of_cache ? 16 : count);
    }
  }
};

// [dims / 32][16 pairs of them][columns][2]
void turn_queries(const Attention &form, const Task &task, const Run &run, int64_t columns, Bf16 *to) {
  memset(to, 0, form.padded_dim * columns * sizeof(Bf16));
  for (int64_t row = 0; row < task.count; row++) {
    const int64_t at = task.first + row, head = task.kv_head * form.share + at % form.share;
    const Bf16 *from = run.row<Bf16>(form.q, task.token + at / form.share) + head * form.head_dim;
    for (int64_t d = 0; d < form.head_dim; d++) to[(d / 2 * columns + row) * 2 + d % 2] = from[d];
  }
}

// Where 16 keys lie with the same distance from one to the next: in the cache, where they are of one block, or in a copy.
struct Sixteen {
  const Bf16 *from;
  int64_t stride;  // bytes
};
TG_INLINE Sixteen sixteen(const Attention &form, const Bf16 *const *keys, Bf16 *copy) {
  const int64_t stride = keys[1] - keys[0];
  bool even = true;
  for (int64_t i = 2; i < 16; i++) even = even && keys[i] - keys[i - 1] == stride;
  if (even) return {keys[0], stride * 2};
  for (int64_t i = 0; i < 16; i++) memcpy(copy + i * form.padded_dim, keys[i], form.padded_dim * sizeof(Bf16));
  return {copy, form.padded_dim * 2};
}

// Scores [16 keys][columns] become [columns][16], kFewUnit from row to row.
template <int kRowsOf>
TG_INLINE void turn_scores(const float *from, float *to) {
  if constexpr (kRowsOf == 4) {
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

template <int kRowsOf>
void attend_few(const Attention &form, const Task &task, const Run &run, const Workspace &space, const Partial &partial,
                int64_t first, int64_t last, const Task *then) {
  FewConfig(task.count, kRowsOf).use();
  Bf16 *query = reinterpret_cast<Bf16 *>(space.query), *weights = reinterpret_cast<Bf16 *>(space.weights);
  Bf16 *keys = reinterpret_cast<Bf16 *>(space.keys), *values = reinterpret_cast<Bf16 *>(space.values);
  Bf16 *key_copies = keys + kFewUnit * form.padded_dim, *value_copies = values + kFewUnit * form.padded_value;
  alignas(64) float found[2][16 * kRowsOf];
  each_head(form, task, partial, [&](const Task &one, const Partial &) {
    turn_queries(form, one, run, kRowsOf, query + (one.kv_head - task.kv_head) * form.padded_dim * kRowsOf);
  });
  const Bf16 *key_places[kFewUnit], *value_places[kFewUnit];
  const int64_t chunks = form.padded_dim / 32, tiles = form.padded_value / 16;
  Rows walk(*form.group, task.segment, task.begin + first * kFewUnit);
  CacheUnit units[2];
  units[first & 1].find(task, first, walk);
  for (int64_t unit = first; unit < last; unit++) {
    const int64_t *rows = units[unit & 1].rows;
    const int64_t key = task.begin + unit * kFewUnit, count = units[unit & 1].count, padded = round_up(count, 32);
    CacheUnit &next = units[(unit + 1) & 1];
    next.count = 0;
    if (unit + 1 < last) {
      next.find(task, unit + 1, walk);
    } else if (then != nullptr) {
      Rows other(*form.group, then->segment, then->begin);
      next.find(*then, 0, other);
    }
    CacheAhead ahead(form, unit + 1 < last || then == nullptr ? task : *then, next, CacheAhead::kBoth,
                     task.heads * (padded / 32) * (8 * tiles + chunks));
    each_head(form, task, partial, [&](const Task &one, const Partial &own) {
      const Cached of_keys = cached_keys(form, one.kv_head), of_values = cached_values(form, one.kv_head, form.padded_value);
      const Bf16 *turned = query + (one.kv_head - task.kv_head) * form.padded_dim * kRowsOf;
      if (form.cache_dtype == TG_I8) {
        locate<Bf16, int8_t>(of_keys, rows, count, keys, key_places);
        locate<Bf16, int8_t>(of_values, rows, count, value_copies, value_places);
      } else {
        locate<Bf16, Bf16>(of_keys, rows, count, keys, key_places);
        locate<Bf16, Bf16>(of_values, rows, count, value_copies, value_places);
      }
      for (int64_t i = count; i < padded; i++) key_places[i] = key_places[count - 1];
      for (int64_t at = 0; at < padded; at += 32) {
        const Sixteen a = sixteen(form, key_places + at, key_copies);
        const Sixteen b = sixteen(form, key_places + at + 16, key_copies + 16 * form.padded_dim);
        tile_zero<kFewScores>();
        tile_zero<kFewScores + 1>();
        for (int64_t c = 0; c < chunks; c++) {
          ahead.ask();
          tile_load<kFewQuery>(turned + c * 32 * kRowsOf, kRowsOf * 4);
          tile_load<kFewCached>(a.from + c * 32, a.stride);
          tile_dot<false, kFewScores, kFewCached, kFewQuery>();
          tile_load<kFewCached + 1>(b.from + c * 32, b.stride);
          tile_dot<false, kFewScores + 1, kFewCached + 1, kFewQuery>();
        }
        tile_store<kFewScores>(found[0], kRowsOf * 4);
        tile_store<kFewScores + 1>(found[1], kRowsOf * 4);
        turn_scores<kRowsOf>(found[0], space.scores + at);
        turn_scores<kRowsOf>(found[1], space.scores + at + 16);
      }
      weigh<Bf16>(form, one, own, 0, one.count, space.scores, weights, kFewUnit, key, count, padded);
      for (int64_t at = 0; at < padded; at += 32) {
        pack_values(form, value_places + at, least(32, count - at), values + at / 32 * tiles * kTile, [&] { ahead.ask(); });
      }
      for (int64_t tile = 0; tile < tiles; tile += 2) {
        float *out = own.out + tile * 16;
        const int64_t stride = form.padded_value * 4;
        tile_load<kFewSums>(out, stride);
        tile_load<kFewSums + 1>(out + 16, stride);
        for (int64_t at = 0; at < padded; at += 32) {
          const Bf16 *right = values + (at / 32 * tiles + tile) * kTile;
          tile_load<kFewWeights>(weights + at, kFewUnit * 2);
          tile_load<kFewCached>(right, 64);
          tile_dot<false, kFewSums, kFewWeights, kFewCached>();
          tile_load<kFewCached + 1>(right + kTile, 64);
          tile_dot<false, kFewSums + 1, kFewWeights, kFewCached + 1>();
        }
        tile_store<kFewSums>(out, stride);
        tile_store<kFewSums + 1>(out + 16, stride);
      }
    });
  }
  tile_release();
}

}  // namespace

void attend_few_by_tiles(const Attention &form, const Task &task, const Run &run, const Workspace &space, const Partial &partial,
                         int64_t first, int64_t last, const Task *then) {
  if (task.count <= 4) return attend_few<4>(form, task, run, space, partial, first, last, then);
  attend_few<16>(form, task, run, space, partial, first, last, then);
}

#else

void attend_few_by_tiles(const Attention &, const Task &, const Run &, const Workspace &, const Partial &, int64_t, int64_t,
                         const Task *) {}

#endif

}  // namespace tg::TG_ISA
