// Attention of many rows, as in prompts: products by AMX tiles of bfloat16 (16 rows of 64 bytes), weights rounded to bfloat16.
//
// Keys become 16 x 16 pairs of numbers turned about their diagonal, values pairs of neighbouring rows: the two forms in which
// a tile is the right side of a product. A unit is packed once for all rows of a task.
#include "attention_pack.h"

namespace tg::TG_ISA {

#if defined(__AMX_BF16__)

namespace {

constexpr int64_t kBlock = 32;  // rows whose scores are worked on at a time

// Tiles [keys / 16][padded_dim / 32]; keys from `count` on are copies of the last.
void pack_keys(const Attention &form, const Bf16 *const *keys, int64_t count, Bf16 *to) {
  for (int64_t key = 0; key < count; key += 16) {
    for (int64_t d = 0; d < form.padded_dim; d += 32) {
      __m512i tile[16];
#pragma GCC unroll 16
      for (int64_t i = 0; i < 16; i++) tile[i] = _mm512_loadu_si512(keys[least(key + i, count - 1)] + d);
      transpose(tile);
#pragma GCC unroll 16
      for (int64_t i = 0; i < 16; i++) _mm512_store_si512(to + i * 32, tile[i]);
      to += kTile;
    }
  }
}

// Scores [32, padded keys] of a block of queries.
TG_INLINE void multiply_keys(const Attention &form, const Bf16 *query, const Bf16 *keys, int64_t padded, bool both,
                             float *scores) {
  const int64_t chunks = form.padded_dim / 32, stride = form.padded_dim * 2;
  for (int64_t key = 0; key < padded; key += 32, keys += 2 * chunks * kTile) {
    tile_zero<0>();
    tile_zero<1>();
    tile_zero<2>();
    tile_zero<3>();
    for (int64_t c = 0; c < chunks; c++) {
      tile_load<4>(query + c * 32, stride);
      tile_load<6>(keys + c * kTile, 64);
      tile_load<7>(keys + (chunks + c) * kTile, 64);
      tile_dot<false, 0, 4, 6>();
      tile_dot<false, 1, 4, 7>();
      if (both) {
        tile_load<5>(query + 16 * form.padded_dim + c * 32, stride);
        tile_dot<false, 2, 5, 6>();
        tile_dot<false, 3, 5, 7>();
      }
    }
    tile_store<0>(scores + key, kTileUnit * 4);
    tile_store<1>(scores + key + 16, kTileUnit * 4);
    if (both) {
      tile_store<2>(scores + 16 * kTileUnit + key, kTileUnit * 4);
      tile_store<3>(scores + 16 * kTileUnit + key + 16, kTileUnit * 4);
    }
  }
}

// out [32, padded_value] += weights [32, padded keys] * values.
TG_INLINE void multiply_values(const Attention &form, const Bf16 *weights, const Bf16 *values, int64_t padded, bool both,
                               float *out) {
  const int64_t tiles = form.padded_value / 16, stride = form.padded_value * 4;
  for (int64_t tile = 0; tile < tiles; tile += 2) {
    float *lower = out + 16 * form.padded_value + tile * 16;
    tile_load<0>(out + tile * 16, stride);
    tile_load<1>(out + tile * 16 + 16, stride);
    if (both) {
      tile_load<2>(lower, stride);
      tile_load<3>(lower + 16, stride);
    }
    for (int64_t key = 0; key < padded; key += 32) {
      const Bf16 *right = values + (key / 32 * tiles + tile) * kTile;
      tile_load<4>(weights + key, kTileUnit * 2);
      tile_load<6>(right, 64);
      tile_load<7>(right + kTile, 64);
      tile_dot<false, 0, 4, 6>();
      tile_dot<false, 1, 4, 7>();
      if (both) {
        tile_load<5>(weights + 16 * kTileUnit + key, kTileUnit * 2);
        tile_dot<false, 2, 5, 6>();
        tile_dot<false, 3, 5, 7>();
      }
    }
    tile_store<0>(out + tile * 16, stride);
    tile_store<1>(out + tile * 16 + 16, stride);
    if (both) {
      tile_store<2>(lower, stride);
      tile_store<3>(lower + 16, stride);
    }
  }
}

// Whether a row of rows first to last of a task sees one of `count` keys from position `key` on.
TG_INLINE bool sees(const Attention &form, const Task &task, int64_t first, int64_t last, int64_t key, int64_t count) {
  const int64_t latest = task.start + (task.first + last) / form.share;
  const int64_t earliest = task.start + (task.first + first) / form.share;
  return key <= latest && (form.window == 0 || key + count > earliest - form.window + 1);
}

}  // namespace

void attend_by_tiles(const Attention &form, const Task &task, const Run &run, const Workspace &space, const Partial &partial,
                     int64_t first, int64_t last) {
  TileConfig(64).use();
  Bf16 *query = reinterpret_cast<Bf16 *>(space.query), *weights = reinterpret_cast<Bf16 *>(space.weights);
  Bf16 *keys = reinterpret_cast<Bf16 *>(space.keys), *values = reinterpret_cast<Bf16 *>(space.values);
  for (int64_t row = 0; row < round_up(task.count, kBlock); row++) {
    Bf16 *to = query + row * form.padded_dim;
    memset(to, 0, form.padded_dim * sizeof(Bf16));
    if (row >= task.count) continue;
    const int64_t at = task.first + row, head = task.kv_head * form.share + at % form.share;
    memcpy(to, run.row<Bf16>(form.q, task.token + at / form.share) + head * form.head_dim, form.head_dim * sizeof(Bf16));
  }
  const Cached of_keys = cached_keys(form, task.kv_head), of_values = cached_values(form, task.kv_head, form.padded_value);
  const Bf16 *key_places[kTileUnit], *value_places[kTileUnit];
  Rows walk(*form.group, task.segment, task.begin + first * kTileUnit);
  for (int64_t unit = first; unit < last; unit++) {
    const int64_t key = task.begin + unit * kTileUnit, count = least(kTileUnit, task.end - key);
    const int64_t padded = round_up(count, 32);
    int64_t rows[kTileUnit];
    for (int64_t i = 0; i < count; i++) rows[i] = walk.next();
    if (form.cache_dtype == TG_I8) {
      locate<Bf16, int8_t>(of_keys, rows, count, keys + kTileUnit * form.padded_dim, key_places);
      locate<Bf16, int8_t>(of_values, rows, count, values + kTileUnit * form.padded_value, value_places);
    } else {
      locate<Bf16, Bf16>(of_keys, rows, count, keys + kTileUnit * form.padded_dim, key_places);
      locate<Bf16, Bf16>(of_values, rows, count, values + kTileUnit * form.padded_value, value_places);
    }
    pack_keys(form, key_places, count, keys);
    pack_values(form, value_places, count, values, [] {});
    for (int64_t begin = 0; begin < task.count; begin += kBlock) {
      const int64_t end = least(begin + kBlock, task.count);
      const bool both = end - begin > 16;
      if (!sees(form, task, begin, end - 1, key, count)) continue;
      multiply_keys(form, query + begin * form.padded_dim, keys, padded, both, space.scores);
      for (int64_t row = begin; row < end; row += kLanes) {
        const int64_t from = (row - begin) * kTileUnit;
        weigh<Bf16>(form, task, partial, row, least(kLanes, end - row), space.scores + from, weights + from, kTileUnit, key,
                    count, padded);
      }
      multiply_values(form, weights, values, padded, both, partial.out + begin * form.padded_value);
    }
  }
  tile_release();
}

#else

void attend_by_tiles(const Attention &, const Task &, const Run &, const Workspace &, const Partial &, int64_t, int64_t) {}

#endif

}  // namespace tg::TG_ISA
