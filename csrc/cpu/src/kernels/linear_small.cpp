// Products with weights of four to six bits, in groups of inputs with a scale each: int4, MXFP4 and the blocks of GGUF files.
//
// Eight inputs of sixteen outputs are unpacked to bytes in registers, once for all rows that are multiplied together.
#include "linear_forms.h"

namespace tg::TG_ISA {
namespace {

// The sums of kRows rows from `row` on and of the panels panel, panel + apart, ...
template <typename Form, int kRows, int kStreams>
void block(const Linear &job, int64_t row, int64_t panel, int64_t apart) {
  constexpr int kBeside = kStreams < 2 ? 1 : 2;  // streams whose units are in registers together, for which each part of x is read once
  const tg_weight *weight = job.weight;
  const int64_t groups = Form::groups(weight), pairs = Form::pairs(weight), bytes = Form::record_bytes(weight);
  const uint8_t *record[kStreams], *begin[kStreams];
  for (int s = 0; s < kStreams; s++) record[s] = begin[s] = weight->values + (panel + s * apart) * weight->panel_bytes;
  Ahead ahead(job, row, kRows, weight->groups * pairs);
  const char *x = job.x.values + row * job.x.row_bytes;
  const float *x_scales = job.x.scales + row * weight->groups;
  const int32_t *x_sums = job.x.sums + row * weight->groups;
  Vec sums[kRows][kStreams][kParts] = {};
  for (int64_t at = 0; at * groups < weight->groups; at++) {
    Form form[kStreams];
    for (int s = 0; s < kStreams; s++) form[s].open(weight, record[s], panel + s * apart, at);
    for (int64_t group = 0; group < groups; group++) {
      if (kRows == job.rows) {
        ahead.at = Form::line(weight, at * groups + group), ahead.apart = 64;
        for (int s = 0; s < kStreams; s++) Form::ask_scales(weight, begin[s], at * groups + group);
      }
      typename Small::Acc acc[kRows][kStreams];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; r++) {
        const int32_t sum = Form::kShift ? x_sums[r * weight->groups] : 0;
#pragma GCC unroll 8
        for (int s = 0; s < kStreams; s++) acc[r][s] = Small::start(sum);
      }
      for (int64_t first = 0; first < pairs; first += Form::kFlush / 2) {
#pragma GCC unroll 4
        for (int64_t p = first; p < first + Form::kFlush / 2; p++) {
#pragma GCC unroll 8
          for (int s = 0; s < kStreams; s += kBeside) {
            Units low[kBeside], high[kBeside];
#pragma GCC unroll 2
            for (int i = 0; i < kBeside; i++) {
              Form::pair(record[s + i], group * pairs + p, low[i], high[i]);
              ahead.ask(begin[s + i]);
            }
#pragma GCC unroll 8
            for (int r = 0; r < kRows; r++) {
              const char *eight = x + r * job.x.row_bytes + p * 8;
              const auto first_four = Small::spread(eight), second_four = Small::spread(eight + 4);
#pragma GCC unroll 2
              for (int i = 0; i < kBeside; i++) Small::step(acc[r][s + i], low[i], first_four);
#pragma GCC unroll 2
              for (int i = 0; i < kBeside; i++) Small::step(acc[r][s + i], high[i], second_four);
            }
          }
          ahead.go_on();
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; r++) {
#pragma GCC unroll 8
          for (int s = 0; s < kStreams; s++) Small::flush(acc[r][s]);
        }
      }
#pragma GCC unroll 8
      for (int s = 0; s < kStreams; s++) {
        Vec scale[kParts], least[kParts];
        form[s].scales(record[s], group, scale, least);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; r++) {
          const float x_scale = x_scales[r * weight->groups];
          Vec dots[kParts];
          Small::finish(acc[r][s], dots);
          for (int part = 0; part < kParts; part++) {
            Vec &sum = sums[r][s][part];
            sum = fma(dots[part] * scale[part], splat(x_scale), sum);
            if constexpr (Form::kMins) sum = fma(least[part], splat(cast<float>(x_sums[r * weight->groups])), sum);
          }
        }
      }
      x += pairs * 8;
      x_scales++, x_sums++;
    }
    for (int s = 0; s < kStreams; s++) record[s] += bytes;
  }
  for (int s = 0; s < kStreams; s++) {
    emit<kRows>(job, row, panel + s * apart, 0, kParts, [&](int r, Vec *to) {
      for (int part = 0; part < kParts; part++) to[part] = sums[r][s][part];
    });
  }
}

constexpr int kMostRows = kLanes == 16 ? 8 : Small::kInRegisters ? 4 : 1;  // that the registers hold

template <typename Form, int kStreams>
void panels_at(const Linear &job, int64_t panel, int64_t apart) {
  by_blocks<kMostRows>(job.rows, [&](auto rows, int64_t row) { block<Form, decltype(rows)::value, kStreams>(job, row, panel, apart); });
}

template <typename Form, int kStreams>
int64_t streams_by(const Linear &job, int64_t begin) {
  const int64_t apart = (job.panels.end - begin) / kStreams;
  for (int64_t i = 0; i < apart; i++) {
    if constexpr (kStreams > 2) {
      block<Form, 1, kStreams>(job, 0, begin + i, apart);
    } else {
      panels_at<Form, kStreams>(job, begin + i, apart);
    }
  }
  return begin + apart * kStreams;
}

// Panels that are read side by side: of one row so many, where the registers hold their sums.
template <typename Form>
constexpr int kMany = kLanes == 16 ? Form::kStreams : 4;
template <typename Form>
int64_t streams_of(int64_t rows) {
  if (kLanes == 8) return rows == 1 ? kMany<Form> : 1;
  if (kLanes < 8) return 1;
  return reads_many() && rows == 1 ? kMany<Form> : 2;
}

template <typename Form>
void multiply_by(const Linear &job) {
  int64_t panel = job.panels.begin;
  const int64_t streams = streams_of<Form>(job.rows);
  if constexpr (kLanes >= 8) {
    if (streams > 2) panel = streams_by<Form, kMany<Form>>(job, panel);
    if (streams >= 2) panel = streams_by<Form, 2>(job, panel);
  }
  streams_by<Form, 1>(job, panel);
}

}  // namespace

int64_t small_streams_of(const tg_weight *weight, int64_t rows) {
  int64_t streams = 1;
  by_form(weight, [&](auto form) { streams = streams_of<typename decltype(form)::type>(rows); });
  return streams;
}

void multiply_small(const Linear &job) {
  by_form(job.weight, [&](auto form) { multiply_by<typename decltype(form)::type>(job); });
}

}  // namespace tg::TG_ISA
