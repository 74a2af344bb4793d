// Attention of few rows on processors with AMX, as of sequences that go on by a token.
//
// Keys are the left side of their product as they lie in the cache, 16 of them to a tile; its right side is queries, turned once.
// Scores come key by key and are turned back. Values are added up by vectors in float32: to pack them as the right side of a
// product takes twice as long as that, and so do vectors' products of pairs. Tiles of all heads are stored before the first is
// read, which would have to wait for it. What is left to wait for is memory.
#include "attention_few.h"
#include "attention_pack.h"

namespace tg::TG_ISA {

#if defined(__AMX_BF16__)

namespace {

constexpr int kScores = 0, kQuery = 4, kKeys = 6;  // tiles: four, one, two
static_assert(kGroups == 4);
// How often memory is asked while 32 numbers of all keys are multiplied, while scores of sixteen are turned, and before weights are
// found, where it is once for each two values: in proportion to the time these take.
constexpr int64_t kOfKeys = 8, kOfScores = 2, kOfWeights = 5;

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

// Calls f(groups, position of the first key, ahead) for units first to last of a task. Tiles read all rows of a unit for one head
// and then for the next, so that a whole unit is asked for ahead: `ahead` is to be called calls(keys of the unit) times.
template <typename C, typename F>
TG_INLINE void each_whole_unit(const Attention &form, const Task &task, int64_t first, int64_t last, const Task *then, const C &calls,
                               const F &f) {
  Rows walk(*form.group, task.segment, task.begin + first * kFewUnit);
  CacheUnit units[2];
  units[first & 1].find(task, first, walk);
  for (int64_t unit = first; unit < last; unit++) {
    CacheUnit &next = units[(unit + 1) & 1];
    find_next(form, task, unit + 1, last, then, walk, next);
    const Groups groups(units[unit & 1]);
    UnitAhead ahead(form, unit + 1 < last || then == nullptr ? task : *then, next, calls(groups.count));
    f(groups, task.begin + unit * kFewUnit, ahead);
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
  const int64_t turns = ceil_div(task.count, 4) * ceil_div(form.padded_value, 64);  // in which each value is read
  const auto calls = [&](int64_t count) {
    return task.heads * (chunks * kOfKeys + ceil_div(count, 16) * kOfScores + kOfWeights + ceil_div(count, 2) * turns);
  };
  each_whole_unit(form, task, first, last, then, calls, [&](const Groups &groups, int64_t key, UnitAhead &ahead) {
    const int64_t padded = groups.groups * 16;
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
        const Cached of_keys = cached_keys(form, task.kv_head + head);
        for (int64_t g = 0; g < groups.groups; g++) {
          ahead.ask(kOfScores);
          turn_scores<kColumns>(found[head - begin][g], scores_of(head) + g * 16);
          if (of_keys.scales != nullptr) groups.scale(of_keys, g, task.count, scores_of(head) + g * 16);
        }
      }
    }
    each_head(form, task, partial, [&](const Task &one, const Partial &own) {
      const int64_t head = one.kv_head - task.kv_head;
      float *scores = scores_of(head);
      ahead.ask(kOfWeights);
      weigh<float, true, kColumns>(form, one, own, 0, one.count, scores, scores, kFewUnit, key, groups.count, padded);
      Sixteen values[kGroups];
      const Cached of_values = cached_values(form, one.kv_head, form.padded_value);
      for (int64_t g = 0; g < groups.groups; g++) {
        values[g] = groups.at(form, of_values, g, false, value_copies);
        if (of_values.scales != nullptr) groups.scale(of_values, g, one.count, scores + g * 16);
      }
      by_blocks<4>(one.count, [&](auto rows, int64_t row) {
        add_values<decltype(rows)::value>(form, scores + row * kFewUnit, values, groups.count,
                                          own.out + row * form.padded_value, [&] { ahead.ask(); });
      });
    });
  });
  tile_release();
}

}  // namespace

void attend_few(const Attention &form, const Task &task, const Run &run, const Workspace &space, const Partial &partial,
                int64_t first, int64_t last, bool, const Task *then) {
  if (task.count <= 4) return attend<4>(form, task, run, space, partial, first, last, then);
  attend<16>(form, task, run, space, partial, first, last, then);
}

#endif

}  // namespace tg::TG_ISA
