// Which experts a token goes to, and what share each has in the result.
#include "rows.h"

namespace tg::TG_ISA {
namespace {

constexpr float kOut = -__builtin_inff();
constexpr float kTiny = 1e-20f;  // beside the sum of the shares, which may be nothing

struct Route {
  int64_t experts, top, groups, top_groups, best, score;
  const float *correction;
  float scale;
  bool normalize;
};

void probabilities(float *x, int64_t count, bool sigmoids) {
  float top = kOut, total = 0;
  for (int64_t i = 0; i < count; i++) top = __builtin_fmaxf(top, x[i]);
  for (int64_t i = 0; i < count; i++) {
    x[i] = sigmoids ? 1.0f / (1.0f + expf(-x[i])) : expf(x[i] - top);
    total += x[i];
  }
  for (int64_t i = 0; i < count && !sigmoids; i++) x[i] /= total;
}

// The first of the largest numbers, which is then out of reach. A NaN is taken when nothing else is left.
int64_t take_best(float *x, bool *taken, int64_t count) {
  int64_t best = -1;
  for (int64_t i = 0; i < count; i++) {
    if (!taken[i] && (best < 0 || x[i] > x[best] || (x[best] != x[best] && x[i] == x[i]))) best = i;
  }
  taken[best] = true;
  return best;
}

// Experts outside the best groups are out of reach. `values` and `taken` are scratch, with room for all experts.
void keep_best_groups(const Route &form, float *wished, float *values, bool *taken) {
  const int64_t size = form.experts / form.groups;
  for (int64_t group = 0; group < form.groups; group++) {
    float *of = wished + group * size;
    for (int64_t i = 0; i < size; i++) taken[i] = false;
    values[group] = 0;
    for (int64_t i = 0; i < least(form.best, size); i++) values[group] += of[take_best(of, taken, size)];
  }
  for (int64_t group = 0; group < form.groups; group++) taken[group] = false;
  for (int64_t i = 0; i < form.top_groups; i++) take_best(values, taken, form.groups);
  for (int64_t i = 0; i < form.experts; i++) {
    if (!taken[i / size]) wished[i] = kOut;
  }
}

void route_token(const Route &form, const float *x, int32_t *chosen, float *shares, char *scratch) {
  float *scores = reinterpret_cast<float *>(scratch), *wished = scores + form.experts, *values = wished + form.experts;
  bool *taken = reinterpret_cast<bool *>(values + form.experts);
  memcpy(scores, x, form.experts * sizeof(float));
  if (form.score != TG_SCORE_CHOSEN) probabilities(scores, form.experts, form.score == TG_SCORE_SIGMOID);
  for (int64_t i = 0; i < form.experts; i++) {
    wished[i] = scores[i] + (form.correction == nullptr ? 0.0f : form.correction[i]);
  }
  if (form.groups > 1) keep_best_groups(form, wished, values, taken);
  for (int64_t i = 0; i < form.experts; i++) taken[i] = false;
  for (int64_t i = 0; i < form.top; i++) {
    chosen[i] = static_cast<int32_t>(take_best(wished, taken, form.experts));
    shares[i] = scores[chosen[i]];
  }
  if (form.score == TG_SCORE_CHOSEN) probabilities(shares, form.top, false);
  float total = 0;
  for (int64_t i = 0; i < form.top; i++) total += shares[i];
  const float factor = form.normalize ? form.scale / (total + kTiny) : form.scale;
  for (int64_t i = 0; i < form.top; i++) shares[i] *= factor;
}

void route_run(const tg_op &op, const Run &run) {
  const int64_t x = op.args[TG_ROUTE_X], chosen = op.args[TG_ROUTE_CHOSEN], shares = op.args[TG_ROUTE_SHARES];
  const Route form = {run.buffer(x).width,
                      run.buffer(chosen).width,
                      op.args[TG_ROUTE_GROUPS],
                      op.args[TG_ROUTE_TOP_GROUPS],
                      op.args[TG_ROUTE_BEST],
                      op.args[TG_ROUTE_SCORE],
                      address<const float>(op.args[TG_ROUTE_CORRECTION]),
                      static_cast<float>(op.numbers[TG_ROUTE_SCALE]),
                      (op.flags & TG_ROUTE_NORMALIZE) != 0};
  const Share share = run.share(run.rows(x));
  for (int64_t row = share.begin; row < share.end; row++) {
    route_token(form, run.row<float>(x, row), run.row<int32_t>(chosen, row), run.row<float>(shares, row), run.scratch);
  }
}

const char *route_check(const tg_op &op, const Shape &shape) {
  const int64_t x = op.args[TG_ROUTE_X], chosen = op.args[TG_ROUTE_CHOSEN], shares = op.args[TG_ROUTE_SHARES];
  if (!shape.is_buffer(x) || !shape.is_buffer(chosen) || !shape.is_buffer(shares)) return "route: a buffer is missing";
  const tg_buffer &scores = shape.buffers[x], &ids = shape.buffers[chosen], &of = shape.buffers[shares];
  if (scores.dtype != TG_F32 || of.dtype != TG_F32 || ids.dtype != TG_I32) return "route: a buffer has the wrong dtype";
  if (scores.extent != ids.extent || scores.extent != of.extent || ids.width != of.width) return "route: the buffers differ";
  if (ids.width > scores.width) return "route: there are fewer experts than are chosen";
  const int64_t groups = op.args[TG_ROUTE_GROUPS], top = op.args[TG_ROUTE_TOP_GROUPS];
  if (groups < 1 || scores.width % groups != 0 || top < 1 || top > groups) return "route: the experts are not in such groups";
  if (groups > 1 && top * (scores.width / groups) < ids.width) return "route: the best groups have fewer experts than are chosen";
  if (op.args[TG_ROUTE_BEST] < 1 || op.args[TG_ROUTE_BEST] > 2) return "route: a group is judged by one expert or two";
  if (op.args[TG_ROUTE_SCORE] < TG_SCORE_SOFTMAX || op.args[TG_ROUTE_SCORE] > TG_SCORE_SIGMOID) return "route: no such score";
  return nullptr;
}

Scratch route_scratch(const tg_op &op, const Shape &shape) {
  const int64_t experts = shape.buffers[op.args[TG_ROUTE_X]].width;
  return {0, experts * (3 * static_cast<int64_t>(sizeof(float)) + static_cast<int64_t>(sizeof(bool)))};
}

}  // namespace

extern const Kernel route = {route_run, route_check, route_scratch};

}  // namespace tg::TG_ISA
