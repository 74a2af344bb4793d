// Products by vectors: one row, or a few at a time. Several panels of the weight are read side by side, since one stream of
// reads does not reach the bandwidth of the memory; on some processors two do, and eight do not.
#include "linear_compact.h"

namespace tg::TG_ISA {
namespace {

// The sums of kRows rows from `row` on and of the panels panel, panel + apart, ..., from a panel's vector `part` on.
template <typename Dot, int kRows, int kStreams>
void block(const Linear &job, int64_t row, int64_t panel, int64_t apart, int part = 0) {
  constexpr int kSums = Dot::kSums;
  const tg_weight *weight = job.weight;
  const uint8_t *from[kStreams];
  for (int s = 0; s < kStreams; s++) from[s] = weight->values + (panel + s * apart) * weight->panel_bytes + part * (64 / kParts);
  const char *x = job.x.values + row * job.x.row_bytes;
  typename Dot::Acc acc[kRows][kStreams];
  if (!has_groups(weight)) {
    const int64_t steps = weight->panel_bytes / 64;
    const auto start = [&](int r) { return Dot::start(Dot::kInteger ? job.x.sums[row + r] : 0); };
    Ahead ahead(job, row, kRows, steps, part / kSums, kParts / kSums);
    for (int s = 0; Dot::kInteger && s < kStreams; s++) __builtin_prefetch(weight->scales + (panel + s * apart + 1) * kPanel);
    multiply<Dot, kRows, kStreams>(acc, start, from, x, job.x.row_bytes, 0, steps, ahead);
    const float *x_scales = job.x.scales + row;
    for (int s = 0; s < kStreams; s++) {
      const int64_t at = panel + s * apart;
      Vec scales[kSums] = {};
      for (int i = 0; Dot::kInteger && i < kSums; i++) scales[i] = load(weight->scales + at * kPanel + (part + i) * kLanes);
      Vec sums[kRows][kSums];  // taken before they are stored: else GCC has `acc` in memory in the loop above too, with AVX2
      for (int r = 0; r < kRows; r++) Dot::finish(acc[r][s], sums[r]);
      emit<kRows>(job, row, at, part, kSums, [&](int r, Vec *to) {
        for (int i = 0; i < kSums; i++) to[i] = Dot::kInteger ? sums[r][i] * (scales[i] * x_scales[r]) : sums[r][i];
      });
    }
    return;
  }
  if constexpr (Dot::kInteger) {
    Vec sums[kRows][kStreams][kSums] = {};
    const int64_t steps = weight->group / 4;
    Ahead ahead(job, row, kRows, weight->groups * steps, part / kSums, kParts / kSums);
    for (int64_t g = 0; g < weight->groups; g++) {
      const auto start = [&](int r) { return Dot::start(job.x.sums[(row + r) * weight->groups + g]); };
      if (kRows == job.rows && kSums == kParts) {
        ahead.at = ahead_in(weight, g, steps * 64), ahead.apart = 64;
        for (int s = 0; s < kStreams; s++) ask_behind(weight, from[s], g, steps * 64, kPanel * 2);
      }
      multiply<Dot, kRows, kStreams>(acc, start, from, x, job.x.row_bytes, g * steps, (g + 1) * steps, ahead);
#pragma GCC unroll 8
      for (int s = 0; s < kStreams; s++) {
        Vec scales[kParts];
        load_scales(weight, panel + s * apart, g, scales);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; r++) {
          Vec dots[kSums];
          Dot::finish(acc[r][s], dots);
          for (int i = 0; i < kSums; i++) {
            const Vec scale = scales[part + i] * job.x.scales[(row + r) * weight->groups + g];
            sums[r][s][i] = fma(dots[i], scale, sums[r][s][i]);
          }
        }
      }
    }
    for (int s = 0; s < kStreams; s++) {
      emit<kRows>(job, row, panel + s * apart, part, kSums, [&](int r, Vec *to) {
        for (int i = 0; i < kSums; i++) to[i] = sums[r][s][i];
      });
    }
  }
}

// So many bytes of x stay in the second-level cache while all panels pass by; and at least so many rows, since each time the panels
// come from farther away.
constexpr int64_t kNearBytes = 512 << 10, kNearRows = 32;

// A compact panel is unpacked once for so many rows, multiplied as float32 or as pairs, if it has no more bytes then.
constexpr int64_t kUnpackedRows = 32, kUnpackedRowsOfPairs = 24, kUnpackedBytes = 64 << 10;

// All rows times kStreams panels.
template <typename Dot, int kStreams>
void panels_at(const Linear &job, int64_t panel, int64_t apart) {
  for (int part = 0; part < kParts; part += Dot::kSums) {
    by_blocks<most_rows<Dot, kStreams>()>(job.rows, [&](auto rows, int64_t row) {
      if constexpr (is_compact<Dot>) {
        compact_block<Dot, decltype(rows)::value, kStreams>(job, row, panel, apart);
      } else {
        block<Dot, decltype(rows)::value, kStreams>(job, row, panel, apart, part);
      }
    });
  }
}

template <typename Dot, int kStreams>
int64_t streams_by(const Linear &job, int64_t begin) {
  const int64_t apart = (job.panels.end - begin) / kStreams;
  for (int64_t i = 0; i < apart; i++) panels_at<Dot, kStreams>(job, begin + i, apart);
  return begin + apart * kStreams;
}

// Panels that are read side by side, of so many rows: where there are not enough for that, fewer.
template <typename Dot>
int64_t streams_of(int64_t rows) {
  if constexpr (kLanes == 16) {
    if (reads_many() && rows <= (is_compact<Dot> ? 2 : 1)) return 8;
    return reads_many() && rows <= 4 ? 4 : 2;
  }
  if (Dot::kSumRegisters * 4 <= kHeld && rows == 1) return 4;
  return rows <= 2 ? 2 : 1;
}

template <typename Dot>
void multiply_by(const Linear &job) {
  const int64_t streams = streams_of<Dot>(job.rows);
  int64_t begin = job.panels.begin;
  if constexpr (kLanes == 16) {
    if (streams == 8) begin = streams_by<Dot, 8>(job, begin);
  }
  if constexpr (kLanes == 16 || Dot::kSumRegisters * 4 <= kHeld) {
    if (streams >= 4) begin = streams_by<Dot, 4>(job, begin);
  }
  if (streams >= 2) begin = streams_by<Dot, 2>(job, begin);
  streams_by<Dot, 1>(job, begin);
}

// kStreams panels of a compact weight, unpacked once for all rows, for which they are as of TG_WEIGHT_BF16: by the first block of rows on
// its way, where there are registers for both.
template <typename Packed, typename Dot, int kStreams>
TG_INLINE void unpacked_panels(const Linear &job, int64_t panel, char *unpacked) {
  const tg_weight *weight = job.weight;
  tg_weight plain = *weight;
  plain.format = TG_WEIGHT_BF16;
  plain.panel_bytes = plain.padded * kPanel * 2;
  plain.values = reinterpret_cast<uint8_t *>(unpacked) - panel * plain.panel_bytes;
  int64_t done = 0;  // rows
  if constexpr (kLanes == 16) {
    constexpr int kFirst = most_rows<Packed, kStreams>();
    static_assert(kFirst < kUnpackedRows && kFirst < kUnpackedRowsOfPairs);
    compact_block<Packed, kFirst, kStreams, true>(part_of(job, 0, kFirst), 0, panel, 1, unpacked);
    done = kFirst;
  } else {
    for (int s = 0; s < kStreams; s++) unpack_compact(weight, panel + s, 0, plain.padded, unpacked + s * plain.panel_bytes);
  }
  Linear others = part_of(job, done, job.rows - done);
  others.weight = &plain;
  // For each panel as much is asked for as is unpacked, which is more: nothing is left out, though the next ones lie closer.
  others.next = weight->values + (panel + kStreams) * weight->panel_bytes - reinterpret_cast<uint8_t *>(unpacked);
  others.next_bytes = plain.panel_bytes;
  panels_at<Dot, kStreams>(others, panel, 1);
}

template <typename Packed, typename Dot, int kStreams>
void multiply_unpacked(const Linear &job) {
  alignas(64) char unpacked[kStreams * kUnpackedBytes];
  int64_t panel = job.panels.begin;
  for (; panel + kStreams <= job.panels.end; panel += kStreams) unpacked_panels<Packed, Dot, kStreams>(job, panel, unpacked);
  for (; panel < job.panels.end; panel++) unpacked_panels<Packed, Dot, 1>(job, panel, unpacked);
}

template <typename T>
struct DotOf {
  using type = T;
};
// Calls f(DotOf<Dot>()) with how so many rows are multiplied with a weight of eight bits or more.
template <typename F>
TG_INLINE void by_dot(int32_t format, [[maybe_unused]] int64_t rows, const F &f) {
  switch (format) {
    case TG_WEIGHT_F32: return f(DotOf<Floats>());
    case TG_WEIGHT_BF16:
#if defined(__AVX512BF16__)
      if (!as_floats()) return f(DotOf<Bf16Pairs>());
#endif
      return f(DotOf<Bf16s>());
    case TG_WEIGHT_BF16_COMPACT:
#if defined(__AVX512BF16__)
      if (!as_floats()) return f(DotOf<CompactPairs>());
#endif
      return f(DotOf<CompactFloats>());
    case TG_WEIGHT_F16: return f(DotOf<Halves>());
    default:
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(TG_AVX_VNNI)
      if (rows > 2) return f(DotOf<SomeBytes<1>>());
#endif
      return f(DotOf<Bytes>());
  }
}

void multiply_near(const Linear &job) {
  const tg_weight *weight = job.weight;
  if (is_small(weight->format)) return multiply_small(job);
  if (weight->format == TG_WEIGHT_BF16_COMPACT && weight->padded * kPanel * 2 <= kUnpackedBytes) {
#if defined(__AVX512BF16__)
    if (!as_floats() && job.rows >= kUnpackedRowsOfPairs) return multiply_unpacked<CompactPairs, Bf16Pairs, 2>(job);
#endif
    if (as_floats() && job.rows >= kUnpackedRows) return multiply_unpacked<CompactFloats, Bf16s, kLanes == 16 ? 2 : 1>(job);
  }
  by_dot(weight->format, job.rows, [&](auto dot) { multiply_by<typename decltype(dot)::type>(job); });
}

}  // namespace

int64_t streams_of(const tg_weight *weight, int64_t rows) {
  if (is_small(weight->format)) return small_streams_of(weight, rows);
  int64_t streams = 1;
  by_dot(weight->format, rows, [&](auto dot) { streams = streams_of<typename decltype(dot)::type>(rows); });
  return streams;
}

void multiply_rows(const Linear &job) {
  const int64_t count = job.rows - job.first, near = most(kNearBytes / job.x.row_bytes, kNearRows);
  const int64_t at_once = round_up(ceil_div(count, most(ceil_div(count, near), 1)), 8);
  for (int64_t first = job.first; first < job.rows; first += at_once) {
    multiply_near(part_of(job, first, least(at_once, job.rows - first)));
  }
}

}  // namespace tg::TG_ISA
