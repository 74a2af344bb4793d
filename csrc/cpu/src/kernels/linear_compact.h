// Compact bfloat16, few rows: a record of a panel becomes bfloat16 in registers, on its way to the product.
#pragma once
#include "linear_dots.h"

namespace tg::TG_ISA {

constexpr int64_t kCompactUnits = kCompactInputs / 2;  // of two inputs, in a record
constexpr int64_t kLong = 1 << 20;                     // bytes of a stream

TG_INLINE const Compact *head_of(const tg_weight *weight, int64_t panel) {
  return reinterpret_cast<const Compact *>(weight->values + panel * weight->panel_bytes);
}
TG_INLINE const uint8_t *values_of(const tg_weight *weight, int64_t panel) {
  return weight->values + (panel + 1) * weight->panel_bytes - weight->value_bytes;
}

// Where numbers of TG_WEIGHT_BF16 have that of a place, input * kPanel + output.
TG_INLINE char *place_in(char *numbers, int64_t place) {
  const int64_t input = place / kPanel, output = place % kPanel;
  return numbers + input / 2 * 64 + output * 4 + input % 2 * 2;
}

// What the codes of a panel stand for.
class Codes {
 public:
  // A unit of a vector of outputs: for each the first input's number in the lower half, the second's in the upper.
  TG_INLINE UVec unit(const uint8_t *record, int unit, [[maybe_unused]] int part) const {
#if defined(__AVX512BW__)
    const __m512i low = _mm512_loadu_si512(record + unit / 2 * 64), both = _mm512_loadu_si512(record + 128);
    const __m512i codes = _mm512_and_si512(unit < 2 ? both : _mm512_srli_epi16(both, 4), _mm512_set1_epi8(15));
    const __m512i high = _mm512_shuffle_epi8(high_, codes);
    return cast<UVec>(unit % 2 == 0 ? _mm512_unpacklo_epi8(low, high) : _mm512_unpackhi_epi8(low, high));
#elif defined(__AVX2__)
    const __m256i *lines = reinterpret_cast<const __m256i *>(record) + part;
    const __m256i low = _mm256_loadu_si256(lines + unit / 2 * 2), both = _mm256_loadu_si256(lines + 4);
    const __m256i codes = _mm256_and_si256(unit < 2 ? both : _mm256_srli_epi16(both, 4), _mm256_set1_epi8(15));
    const __m256i high = _mm256_shuffle_epi8(high_, codes);
    return cast<UVec>(unit % 2 == 0 ? _mm256_unpacklo_epi8(low, high) : _mm256_unpackhi_epi8(low, high));
#else
    static_assert(kLanes == 4);
    const uint8_t *low = record + unit / 2 * 64 + part * 16 + unit % 2 * 8, *codes = record + 128 + part * 16 + unit % 2 * 8;
    uint8_t bytes[16];
    for (int i = 0; i < 8; i++) {
      bytes[2 * i] = low[i];
      bytes[2 * i + 1] = high_[codes[i] >> unit / 2 * 4 & 15];
    }
    UVec made;
    memcpy(&made, bytes, 16);
    return made;
#endif
  }

  TG_INLINE void open(const Compact *head) {
#if defined(__AVX512BW__)
    high_ = _mm512_maskz_broadcast_i32x4(0xffff, _mm_load_si128(reinterpret_cast<const __m128i *>(head->high)));
#elif defined(__AVX2__)
    high_ = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i *>(head->high)));
#else
    high_ = head->high;
#endif
  }

 private:
#if defined(__AVX512BW__)
  __m512i high_;
#elif defined(__AVX2__)
  __m256i high_;
#else
  const uint8_t *high_;
#endif
};

// A panel as one of TG_WEIGHT_BF16, a tile of 32 inputs after the other.
class CompactTiles {
 public:
  static constexpr int64_t kInputs = 32;

  // From input `first` on, a multiple of kInputs, as all inputs of a compact weight are.
  TG_INLINE void open(const tg_weight *weight, int64_t panel, int64_t first = 0) {
    const Compact *head = head_of(weight, panel);
    record_ = values_of(weight, panel) + first / kCompactInputs * kCompactRecord;
    codes_.open(head);
    spill_ = head->spills;
    last_ = head->spills + head->count;
    place_ = first * kPanel;
    while (spill_ < last_ && spill_->place < place_) spill_++;
  }

  TG_INLINE void next(char *to) {
#pragma GCC unroll 4
    for (int i = 0; i < kRecords; i++) {
      const uint8_t *record = record_ + i * kCompactRecord;
#pragma GCC unroll 3
      for (int line = 0; line < kCompactRecord / 64; line++) __builtin_prefetch(record + kAskedAhead + line * 64, 0, kAskedInto);
#pragma GCC unroll 4
      for (int u = 0; u < kCompactUnits; u++) {
        for (int part = 0; part < kParts; part++) {
          const UVec numbers = codes_.unit(record, u, part);
          memcpy(to + (i * kCompactUnits + u) * 64 + part * kLanes * 4, &numbers, sizeof numbers);
        }
      }
    }
    record_ += kRecords * kCompactRecord;
    const int64_t end = place_ + kInputs * kPanel;
    for (; spill_ < last_ && spill_->place < end; spill_++) memcpy(place_in(to, spill_->place - place_), &spill_->number, 2);
    place_ = end;
  }

 private:
  static constexpr int kRecords = kInputs / kCompactInputs;
  const uint8_t *record_;
  const Spill *spill_, *last_;
  int64_t place_;
  Codes codes_;
};

// The products of a record; a turn is a unit, or one of its two inputs.
struct CompactFloats : Floats {
  static constexpr int kUnit = kCompactInputs * 4;
  static constexpr int kTurns = 2;
  TG_INLINE static Right take(const UVec (&unit)[kParts], int turn) {
    Right right;
    for (int part = 0; part < kParts; part++) right.part[part] = cast<Vec>(turn == 0 ? unit[part] << 16 : unit[part] & 0xffff0000u);
    return right;
  }
  TG_INLINE static float x(const char *row, int64_t input) { return reinterpret_cast<const float *>(row)[input]; }
};

#if defined(__AVX512BF16__)
struct CompactPairs : Bf16Pairs {
  static constexpr int kUnit = kCompactInputs * 2;
  static constexpr int kTurns = 1;
  TG_INLINE static Right take(const UVec (&unit)[kParts], int) { return {cast<__m512i>(unit[0])}; }
  TG_INLINE static float x(const char *row, int64_t input) { return to_float(reinterpret_cast<const Bf16 *>(row)[input]); }
};
#endif

template <typename Dot>
constexpr bool is_compact = false;
template <>
constexpr bool is_compact<CompactFloats> = true;
#if defined(__AVX512BF16__)
template <>
constexpr bool is_compact<CompactPairs> = true;
#endif

// What the numbers of a panel that have no code add to its sums, [kRows][16].
template <typename Dot, int kRows>
void add_spills(const Compact *head, const char *x, int64_t x_stride, float *sums) {
  for (uint32_t i = 0; i < head->count; i++) {
    const Spill &spill = head->spills[i];
    const float number = to_float(Bf16{spill.number}), stand_in = to_float(Bf16{spill.stand_in});
    const int64_t input = spill.place / kPanel, lane = spill.place % kPanel;
    for (int r = 0; r < kRows; r++) sums[r * kPanel + lane] += (number - stand_in) * Dot::x(x + r * x_stride, input);
  }
}

// The numbers of a panel that have no code, among those of TG_WEIGHT_BF16.
TG_INLINE void put_spills(const Compact *head, char *numbers) {
  for (uint32_t i = 0; i < head->count; i++) memcpy(place_in(numbers, head->spills[i].place), &head->spills[i].number, 2);
}

// The sums of kRows rows from `row` on and of the panels panel, panel + apart, ...: stream by stream within a record, whose units
// are brought into form once for all rows. kKeep: and become panels of TG_WEIGHT_BF16 at `kept`, one behind the other.
template <typename Dot, int kRows, int kStreams, bool kKeep = false>
void compact_block(const Linear &job, int64_t row, int64_t panel, int64_t apart, [[maybe_unused]] char *kept = nullptr) {
  const tg_weight *weight = job.weight;
  const int64_t records = weight->padded / kCompactInputs, stride = job.x.row_bytes;
  const char *x = job.x.values + row * stride;
  constexpr int kLines = kCompactRecord / 64;
  // One block of few rows has the processor read on, where it does: with vectors of 256 bits only where a stream is long.
  const bool alone = kRows == job.rows && kRows <= 4, is_short = kLanes < 16 && apart * weight->panel_bytes < kLong;
  const bool closely = !alone || is_short || !reads_on();
  Ahead ahead(job, row, kRows, records * kLines);
  const uint8_t *from[kStreams];
  Codes codes[kStreams];
  typename Dot::Acc acc[kRows][kStreams];
#pragma GCC unroll 8
  for (int s = 0; s < kStreams; s++) {
    from[s] = values_of(weight, panel + s * apart);
    codes[s].open(head_of(weight, panel + s * apart));
#pragma GCC unroll 8
    for (int r = 0; r < kRows; r++) acc[r][s] = Dot::start(0);
  }
  // Many streams one by one: the registers do not hold what all have. Of fewer, all meet a number of x at once.
  constexpr int kTogether = kLanes < 16 || kStreams > 4 ? 1 : kStreams, kUnits = kLanes < 16 ? 2 : kStreams > 4 ? kCompactUnits : 2;
  Fours<kRows> units(x, stride);
  for (int64_t i = 0; i < records; i++) {
#pragma GCC unroll 3
    for (int line = 0; line < kLines; line++) {
      if (line == 0 || closely) {
#pragma GCC unroll 8
        for (int s = 0; s < kStreams; s++) ahead.ask(from[s]);
      }
      ahead.go_on();
    }
#pragma GCC unroll 8
    for (int first = 0; first < kStreams; first += kTogether) {
#pragma GCC unroll 4
      for (int u = 0; u < kCompactUnits; u += kUnits) {
        UVec unit[kUnits][kTogether][kParts];
#pragma GCC unroll 4
        for (int k = 0; k < kUnits; k++) {
#pragma GCC unroll 8
          for (int s = 0; s < kTogether; s++) {
            for (int part = 0; part < kParts; part++) {
              unit[k][s][part] = codes[first + s].unit(from[first + s] + i * kCompactRecord, u + k, part);
              if constexpr (kKeep) {
                char *to = kept + ((first + s) * records + i) * (kCompactUnits * 64) + (u + k) * 64 + part * kLanes * 4;
                memcpy(to, &unit[k][s][part], sizeof(UVec));
              }
            }
          }
        }
#pragma GCC unroll 4
        for (int k = 0; k < kUnits; k++) {
#pragma GCC unroll 2
          for (int turn = 0; turn < Dot::kTurns; turn++) {
            typename Dot::Right right[kTogether];
#pragma GCC unroll 8
            for (int s = 0; s < kTogether; s++) right[s] = Dot::take(unit[k][s], turn);
#pragma GCC unroll 8
            for (int r = 0; r < kRows; r++) {
              const char *at = units.row(r) + (u + k) * (Dot::kUnit / kCompactUnits);
#pragma GCC unroll 8
              for (int s = 0; s < kTogether; s++) Dot::step(acc[r][first + s], right[s], at, turn);
            }
          }
        }
      }
    }
    units.advance(Dot::kUnit);
  }
  for (int s = 0; s < kStreams; s++) {
    const int64_t at = panel + s * apart;
    Vec sums[kRows][kParts];
    for (int r = 0; r < kRows; r++) Dot::finish(acc[r][s], sums[r]);
    if (head_of(weight, at)->count > 0) add_spills<Dot, kRows>(head_of(weight, at), x, stride, reinterpret_cast<float *>(sums));
    if constexpr (kKeep) put_spills(head_of(weight, at), kept + s * records * (kCompactUnits * 64));
    emit<kRows>(job, row, at, 0, kParts, [&](int r, Vec *to) {
      for (int part = 0; part < kParts; part++) to[part] = sums[r][part];
    });
  }
}

}  // namespace tg::TG_ISA
