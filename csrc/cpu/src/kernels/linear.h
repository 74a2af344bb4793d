// What the parts of the linear kernel share.
#pragma once

#include "../count.h"
#include "../simd.h"

// Products of four bytes in vectors of 256 bits.
#if defined(__AVXVNNI__) || defined(TG_EMULATED_VNNI)
#define TG_AVX_VNNI
#endif

namespace tg::TG_ISA {

#if defined(__AMX_TILE__)
constexpr bool kTiles = true;
#else
constexpr bool kTiles = false;
#endif
// From so many rows on, products go through tiles; those of weights in groups go through tiles of bfloat16, and so do those of
// compact ones, for which less is to be done.
constexpr int64_t kTileRows = 2, kUnpackRows = 24, kCompactTileRows = 6;
// From so many rows for each worker on, they share out the rows, not the outputs: each reads the whole weight, but its rows of x
// and y stay in its own cache from operation to operation.
constexpr int64_t kOwnRows = 128;
// How far ahead of what is multiplied the weight is asked for, and into which cache, 3 being the first. Processors with tiles take 3 to
// 6 % longer with 4 KiB and the second one.
constexpr int64_t kAskedAhead = kTiles ? 2048 : 4096;
constexpr int kAskedInto = kTiles ? 3 : 2;
constexpr int kParts = kPanel / kLanes;  // vectors of floats in a panel's 16 sums

// How a product is made: by vectors, by tiles of the weight as it is packed, or by tiles that it is unpacked to.
enum class Way { kVectors, kTiles, kUnpacked };

// x, ready to be multiplied: in the type of the product, its rows padded as those of the weight.
struct Prepared {
  const char *values;   // row after row, or in tiles: [row / 16][column of 64 bytes][16][64 bytes]
  int64_t row_bytes;    // of a row, in either form
  const float *scales;  // int8: [rows]; groups: [rows, groups]
  const int32_t *sums;  // likewise: the sum of the quantized values, times the offset of the weight's, negative; for a weight
                        // with minima the bits of a float: the negative sum, scaled
};

// One linear operation on one worker.
struct Linear {
  const tg_weight *weight;
  const float *bias;  // may be null
  char *y;
  int64_t y_stride;  // bytes
  int64_t first;     // of the rows, a multiple of 32
  int64_t rows;      // behind the last one
  bool y_bf16, add;
  bool past;  // y, of whole lines, goes past the caches: they would not have room for it
  Prepared x;
  Share panels;  // this worker's
  int64_t next, next_bytes;  // what is read behind a panel, from its first byte on, and how much; 0: the panel that follows it
};

// Some rows of a product, as if they were all.
TG_INLINE Linear part_of(const Linear &job, int64_t first, int64_t count) {
  Linear part = job;
  const int64_t scales = first * most(job.weight->groups, 1);
  part.x.values += first * job.x.row_bytes;
  if (part.x.scales != nullptr) part.x.scales += scales, part.x.sums += scales;
  part.y += first * job.y_stride;
  part.first = 0;
  part.rows = count;
  return part;
}

TG_INLINE bool has_groups(const tg_weight *weight) { return weight->groups != 0; }
TG_INLINE bool is_bf16(int32_t format) { return format == TG_WEIGHT_BF16 || format == TG_WEIGHT_BF16_COMPACT; }
// Values of less than eight bits.
TG_INLINE bool is_small(int32_t format) {
  return format == TG_WEIGHT_INT4_GROUPS || (format >= TG_WEIGHT_Q4_K && format <= TG_WEIGHT_MXFP4);
}
TG_INLINE bool has_minima(int32_t format) {
  return format == TG_WEIGHT_Q4_K || format == TG_WEIGHT_Q5_K || format == TG_WEIGHT_INT4_ZEROS;
}
TG_INLINE Way way_of(const tg_weight *weight, int64_t rows) {
  if (kTiles && weight->format == TG_WEIGHT_BF16_COMPACT) return rows >= kCompactTileRows ? Way::kUnpacked : Way::kVectors;
  if (kTiles && has_groups(weight)) return rows >= kUnpackRows ? Way::kUnpacked : Way::kVectors;
  const bool packed = weight->format == TG_WEIGHT_BF16 || weight->format == TG_WEIGHT_INT8;
  return kTiles && packed && rows >= kTileRows ? Way::kTiles : Way::kVectors;
}
// What was added to a stored value; 1 where there are minima, whose product takes the plain sum of x.
TG_INLINE int32_t zero_of(int32_t format) {
  switch (format) {
    case TG_WEIGHT_INT4_GROUPS: return 8;
    case TG_WEIGHT_MXFP4: return 12;
    case TG_WEIGHT_INT4_ZEROS:
    case TG_WEIGHT_Q4_K:
    case TG_WEIGHT_Q5_K: return 1;
    case TG_WEIGHT_Q6_K: return 32;
    default: return 128;
  }
}

// Adds bias and y to a panel's sums of kRows rows from `row` on, `parts` vectors of each from `begin` on, rounds once, and stores.
// take(r, sums) gives those of row + r. What is the same for all rows is looked up once: behind a store the compiler looks again.
template <typename Y, int kRows, typename F>
TG_INLINE void emit_as(const Linear &job, int64_t row, int64_t panel, int begin, int parts, const F &take) {
  const int64_t first = panel * kPanel + begin * kLanes, count = least(job.weight->outs - first, parts * kLanes);
  const float *bias = job.bias == nullptr ? nullptr : job.bias + first;
  const bool add = job.add;
  const int64_t stride = job.y_stride;
  char *rows = job.y + row * stride + first * static_cast<int64_t>(sizeof(Y));
#pragma GCC unroll 12
  for (int r = 0; r < kRows; r++) {
    Vec sums[kParts];
    take(r, sums);
    Y *y = reinterpret_cast<Y *>(rows + r * stride);
    for (int part = 0; part < parts; part++) {
      const int64_t at = part * kLanes, left = count - at;
      if (left <= 0) break;
      const int lanes = static_cast<int>(least(left, kLanes));
      if (bias != nullptr) sums[part] += load_lanes(bias + at, lanes);
      if (add) sums[part] += load_lanes(y + at, lanes);
#if defined(__AVX512F__)
      if constexpr (sizeof(Y) == 4) {
        if (job.past && lanes == kLanes) {
          _mm512_stream_ps(reinterpret_cast<float *>(y + at), sums[part]);
          continue;
        }
      }
#endif
      store_lanes(y + at, sums[part], lanes);
    }
  }
}

template <int kRows, typename F>
TG_INLINE void emit(const Linear &job, int64_t row, int64_t panel, int begin, int parts, const F &take) {
  if (job.y_bf16) {
    emit_as<Bf16, kRows>(job, row, panel, begin, parts, take);
  } else {
    emit_as<float, kRows>(job, row, panel, begin, parts, take);
  }
}

// All of a row's.
TG_INLINE void emit(const Linear &job, int64_t row, int64_t panel, const Vec *sums) {
  emit<1>(job, row, panel, 0, kParts, [&](int, Vec *to) {
    for (int part = 0; part < kParts; part++) to[part] = sums[part];
  });
}

// A panel's 16 float16 numbers.
TG_INLINE void load_halves(const uint8_t *from, Vec *scales) {
#if defined(__AVX512F__)
  scales[0] = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
#elif defined(__AVX2__)
  for (int part = 0; part < 2; part++) {
    scales[part] = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from + part * 16)));
  }
#elif defined(__ARM_NEON)
  for (int part = 0; part < kParts; part++) scales[part] = load(reinterpret_cast<const Half *>(from) + part * kLanes);
#else
  for (int part = 0; part < kParts; part++) {
    HVec halves;
    memcpy(&halves, from + part * kLanes * 2, sizeof halves);
    const UVec bits = __builtin_convertvector(halves, UVec);
    // The fraction and exponent, moved to where float32 has them, are 2^-112 of the number, subnormal ones too.
    const Vec size = cast<Vec>((bits & 0x7fff) << 13) * 5.192296858534828e33f;
    scales[part] = cast<Vec>(cast<UVec>(size) | (bits & 0x8000) << 16);
  }
#endif
}

// A group's 16 scales, of formats that have them behind each panel's values.
TG_INLINE void load_scales(const tg_weight *weight, int64_t panel, int64_t group, Vec *scales) {
  load_halves(weight->values + panel * weight->panel_bytes + weight->value_bytes + group * (kPanel * 2), scales);
}

// Whether bfloat16 is multiplied as float32, in which its rows of x are then: without products of pairs, or where they are slow.
TG_INLINE bool as_floats() {
#if !defined(__AVX512BF16__)
  return true;
#elif defined(__AMX_BF16__)
  return false;
#else
  return slow_pairs();
#endif
}

#if defined(__AVX512F__)
// sum, and of each number's four bytes the products. The instruction itself, since GCC carries the sums of its own function for it
// from register to register, and some to memory and back, in each step of a loop.
TG_INLINE __m512i add_bytes(__m512i sum, __m512i unsigned_bytes, __m512i signed_bytes) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(unsigned_bytes), "v"(signed_bytes));
  return sum;
}
#elif defined(TG_AVX_VNNI)
// a, b: the same, of integers, with four signed bytes that all numbers have. As add_products.
TG_INLINE void add_bytes(Vec &a, Vec &b, const char *signed_bytes, Vec right, Vec beside) {
  Vec unit;
#if defined(TG_EMULATED_VNNI)
  memcpy(&unit, signed_bytes, 4);
  const __m256i four = _mm256_set1_epi32(cast<IVec>(unit)[0]);
  const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8), odd = _mm256_srai_epi16(four, 8);
  const auto products = [&](Vec bytes) {
    const __m256i low = _mm256_and_si256(cast<__m256i>(bytes), _mm256_set1_epi16(255));
    const __m256i high = _mm256_srli_epi16(cast<__m256i>(bytes), 8);
    return cast<IVec>(_mm256_add_epi32(_mm256_madd_epi16(low, even), _mm256_madd_epi16(high, odd)));
  };
  a = cast<Vec>(cast<IVec>(a) + products(right));
  b = cast<Vec>(cast<IVec>(b) + products(beside));
#else
  asm("vpbroadcastd %3, %2\n\t%{vex%} vpdpbusd %2, %4, %0\n\t%{vex%} vpdpbusd %2, %5, %1"
      : "+x"(a), "+x"(b), "=&x"(unit)
      : "m"(*reinterpret_cast<const char(*)[4]>(signed_bytes)), "x"(right), "x"(beside));
#endif
}
#endif

// What a block of rows asks for while it is multiplied, step by step, of each panel that it reads. The
// only block asks for what it comes to itself, far ahead: it waits for nothing but memory. One of several asks for its part of the
// panel that follows, which all of them will read, as large a part as it has of the rows. Of neither may a line be left out: to wait
// for one takes as long as to multiply hundreds.
struct Ahead {
  int64_t at, apart;  // bytes behind a panel's first, and from step to step

  // The block of `rows` rows from `row` on; a panel has `steps` steps. Blocks of some of its outputs alone: the first, or the second,
  // of so many such parts.
  TG_INLINE Ahead(const Linear &job, int64_t row, int64_t rows, int64_t steps, int64_t part = 0, int64_t parts = 1) {
    const int64_t bytes = job.next_bytes == 0 ? job.weight->panel_bytes : job.next_bytes, all = job.rows * parts;
    const bool only = rows == all && job.next_bytes == 0;
    at = only ? kAskedAhead : (job.next_bytes == 0 ? bytes : job.next) + bytes * (part * job.rows + row) / all;
    apart = only ? bytes / steps : ceil_div(bytes * rows, steps * all);
  }
  TG_INLINE void ask(const uint8_t *panel) const { __builtin_prefetch(panel + at, 0, kAskedInto); }
  TG_INLINE void go_on() { at += apart; }
};

// Where a panel's values are `bytes` of a group, and behind all of them `size` bytes of each: what the only block asks for while it
// multiplies a group. Both go on in the panel that follows.
TG_INLINE int64_t ahead_in(const tg_weight *weight, int64_t group, int64_t bytes) {
  const int64_t at = group * bytes + kAskedAhead;
  return at < weight->value_bytes ? at : at + weight->panel_bytes - weight->value_bytes;
}
TG_INLINE void ask_behind(const tg_weight *weight, const uint8_t *panel, int64_t group, int64_t bytes, int64_t size) {
  const int64_t next = group + kAskedAhead / bytes, at = weight->value_bytes + next * size;
  __builtin_prefetch(panel + (next < weight->groups ? at : at + weight->panel_bytes - weight->groups * size), 0, kAskedInto);
}

// A row of x in the form of the product; the caller sees to it that all are ready before they are multiplied. (linear_prepare.cpp)
struct Layout {
  Way way;
  int64_t row_bytes, values, scales, bytes;  // bytes of a prepared row; where the scales begin; all together
};
Layout layout_of(const tg_weight *weight, int64_t rows);
void prepare_row(const tg_weight *weight, const void *x, int32_t dtype, int64_t row, char *to, const Layout &layout);

void multiply_rows(const Linear &job);   // linear_vector.cpp
void multiply_small(const Linear &job);  // linear_small.cpp
// Panels that these read side by side at first, of so many rows.
int64_t streams_of(const tg_weight *weight, int64_t rows);
int64_t small_streams_of(const tg_weight *weight, int64_t rows);
void multiply_tiles(const Linear &job, char *scratch);  // linear_tile.cpp
int64_t tile_scratch(const tg_weight *weight, int64_t rows);
// Inputs [first, first + count) of a panel, whole records, as tiles of bfloat16, 32 inputs each. (linear_unpack.cpp)
void unpack_panel(const tg_weight *weight, int64_t panel, int64_t first, int64_t count, char *to);
// The same of a compact weight, whole tiles; all inputs are a panel of TG_WEIGHT_BF16. (linear_compact.cpp)
void unpack_compact(const tg_weight *weight, int64_t panel, int64_t first, int64_t count, char *to);

// Points the job at rows that were prepared at `space`.
TG_INLINE void take_prepared(Linear &job, const char *space, const Layout &layout) {
  job.x.values = space;
  job.x.row_bytes = layout.row_bytes;
  job.x.scales = reinterpret_cast<const float *>(space + layout.values);
  job.x.sums = reinterpret_cast<const int32_t *>(space + layout.values + layout.scales);
}

}  // namespace tg::TG_ISA
