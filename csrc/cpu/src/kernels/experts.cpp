// A mixture of experts: the pairs of a token and an expert are sorted by expert, and each expert's rows go through its two
// products together. What is shared out among the workers is the panels of all experts in one line, so that it does not matter
// how many rows each of them has.
#include "linear.h"
#include "rows.h"

namespace tg::TG_ISA {
namespace {

constexpr int64_t kAlign = 64;
constexpr int64_t kRun = 512;  // columns of a token's result that one worker sums up

struct Experts {
  int64_t count, top, neurons;
  const tg_weight *const *up, *const *down;
  const float *up_bias, *down_bias;
  Activation activation;
};

Experts read_form(const tg_op &op, const tg_buffer *buffers) {
  Experts form = {};
  form.count = op.args[TG_EXPERTS_COUNT];
  form.top = buffers[op.args[TG_EXPERTS_CHOSEN]].width;
  form.up = address<const tg_weight *const>(op.args[TG_EXPERTS_UP]);
  form.down = address<const tg_weight *const>(op.args[TG_EXPERTS_DOWN]);
  form.neurons = form.down[0]->ins;
  form.up_bias = address<const float>(op.args[TG_EXPERTS_UP_BIAS]);
  form.down_bias = address<const float>(op.args[TG_EXPERTS_DOWN_BIAS]);
  form.activation = {op.args[TG_EXPERTS_KIND], true, static_cast<float>(op.numbers[TG_EXPERTS_LIMIT]),
                     static_cast<float>(op.numbers[TG_EXPERTS_ALPHA])};
  return form;
}

// Bytes of the prepared rows of `pairs` rows, however many of the experts share them: each fills up its last 16, and has more or
// fewer bytes to a row than all would have together.
int64_t prepared_bytes(const tg_weight *weight, int64_t pairs, int64_t experts) {
  const int64_t active = least(experts, pairs);
  const Layout all = layout_of(weight, pairs);
  return all.bytes + active * most(layout_of(weight, 16).bytes, 16 * all.row_bytes);
}

// What all workers see of a step: pairs sorted by expert, their rows on the way through the products.
struct Plan {
  int32_t *first;   // [count + 1] where each expert's pairs begin
  int32_t *pair;    // [pairs] token * top + place of what stands there
  int32_t *place;   // [pairs] where each pair stands
  int64_t *up, *down;  // [count] bytes to where an expert's prepared rows begin, of either product
  char *prepared;
  char *inner;  // [pairs, 2 * neurons] in the dtype of x
  float *out;   // [pairs, outs]
  int64_t bytes;

  Plan(const Experts &form, int64_t pairs, int64_t size, char *at) {
    char *begin = at;
    const auto room = [&](int64_t wanted) {
      char *here = at;
      at += round_up(wanted, kAlign);
      return here;
    };
    first = reinterpret_cast<int32_t *>(room((form.count + 1) * 4));
    pair = reinterpret_cast<int32_t *>(room(pairs * 4));
    place = reinterpret_cast<int32_t *>(room(pairs * 4));
    up = reinterpret_cast<int64_t *>(room(form.count * 8));
    down = reinterpret_cast<int64_t *>(room(form.count * 8));
    prepared = room(most(prepared_bytes(form.up[0], pairs, form.count), prepared_bytes(form.down[0], pairs, form.count)));
    inner = room(pairs * 2 * form.neurons * size);
    out = reinterpret_cast<float *>(room(pairs * form.down[0]->outs * 4));
    bytes = at - begin;
  }

  TG_INLINE int64_t rows_of(int64_t expert) const { return first[expert + 1] - first[expert]; }
};

// By counting, so that pairs of an expert keep the order of their tokens. One worker does it.
void sort_pairs(const Experts &form, const Run &run, int64_t chosen, int64_t rows, Plan &plan) {
  for (int64_t e = 0; e <= form.count; e++) plan.first[e] = 0;
  for (int64_t row = 0; row < rows; row++) {
    const int32_t *ids = run.row<int32_t>(chosen, row);
    for (int64_t i = 0; i < form.top; i++) plan.first[ids[i] + 1]++;
  }
  for (int64_t e = 0; e < form.count; e++) plan.first[e + 1] += plan.first[e];
  for (int64_t row = 0; row < rows; row++) {
    const int32_t *ids = run.row<int32_t>(chosen, row);
    for (int64_t i = 0; i < form.top; i++) {
      const int32_t at = plan.first[ids[i]]++;
      plan.pair[at] = static_cast<int32_t>(row * form.top + i);
      plan.place[row * form.top + i] = at;
    }
  }
  for (int64_t e = form.count; e > 0; e--) plan.first[e] = plan.first[e - 1];
  plan.first[0] = 0;
}

// Where each expert's prepared rows begin.
void lay_out(const Experts &form, const tg_weight *const *weights, const Plan &plan, int64_t *begins) {
  int64_t behind = 0;
  for (int64_t e = 0; e < form.count; e++) {
    begins[e] = behind;
    if (plan.rows_of(e) > 0) behind += round_up(layout_of(weights[e], plan.rows_of(e)).bytes, kAlign);
  }
}

// The expert whose rows position `at` of the sorted pairs is among; asked with rising positions.
TG_INLINE int64_t expert_at(const Plan &plan, int64_t at, int64_t from) {
  while (plan.first[from + 1] <= at) from++;
  return from;
}

// Prepares each of this worker's pairs; row(at) gives where its numbers are.
template <typename F>
TG_INLINE void prepare_pairs(const Plan &plan, const tg_weight *const *weights, const int64_t *begins, int32_t dtype, Share share,
                             const F &row) {
  int64_t expert = 0;
  for (int64_t at = share.begin; at < share.end; at++) {
    expert = expert_at(plan, at, expert);
    const int64_t rows = plan.rows_of(expert);
    const tg_weight *weight = weights[expert];
    prepare_row(weight, row(at), dtype, at - plan.first[expert], plan.prepared + begins[expert], layout_of(weight, rows));
  }
}

// The products of all experts that have rows; y [pairs, width], each expert's rows behind those of the one before.
void multiply_all(const Experts &form, const Run &run, const Plan &plan, const tg_weight *const *weights, const int64_t *begins,
                  const float *bias, char *y, int64_t width, bool bf16) {
  int64_t total = 0;
  for (int64_t e = 0; e < form.count; e++) total += plan.rows_of(e) > 0 ? weights[e]->panels : 0;
  const Share mine = run.share(total);
  int64_t before = 0;
  for (int64_t e = 0; e < form.count && before < mine.end; e++) {
    const int64_t rows = plan.rows_of(e), panels = weights[e]->panels;
    if (rows == 0) continue;
    const Share own = {most(mine.begin - before, 0), least(mine.end - before, panels)};
    before += panels;
    if (own.begin >= own.end) continue;
    Linear job = {};
    job.weight = weights[e];
    job.bias = bias == nullptr ? nullptr : bias + e * width;
    job.y_bf16 = bf16;
    job.y_stride = width * (bf16 ? 2 : 4);
    job.y = y + plan.first[e] * job.y_stride;
    job.rows = rows;
    job.panels = own;
    const Layout layout = layout_of(weights[e], rows);
    take_prepared(job, plan.prepared + begins[e], layout);
    if (layout.way == Way::kVectors) {
      multiply_rows(job);
    } else {
      multiply_tiles(job, run.scratch);
    }
  }
}

template <typename T>
void sum_up(const Experts &form, const Run &run, const Plan &plan, int64_t y, int64_t shares) {
  const int64_t width = run.buffer(y).width, runs = ceil_div(width, kRun);
  const Share share = run.share(run.rows(y) * runs);
  for (int64_t i = share.begin; i < share.end; i++) {
    const int64_t row = i / runs, begin = i % runs * kRun;
    const float *of = run.row<float>(shares, row);
    const int32_t *places = plan.place + row * form.top;
    T *to = run.row<T>(y, row);
    by_vector(begin, least(begin + kRun, width), [&](int64_t at, int lanes) {
      Vec total = {};
      for (int64_t k = 0; k < form.top; k++) total = fma(splat(of[k]), load_lanes(plan.out + places[k] * width + at, lanes), total);
      store_lanes(to + at, total, lanes);
    });
  }
}

template <typename T>
void experts_as(const tg_op &op, const Run &run) {
  const Experts form = read_form(op, run.buffers);
  const int64_t x = op.args[TG_EXPERTS_X], y = op.args[TG_EXPERTS_Y], rows = run.rows(x), pairs = rows * form.top;
  const int32_t dtype = run.buffer(x).dtype;
  Plan plan(form, pairs, sizeof(T), run.shared);
  if (run.worker == 0) {
    sort_pairs(form, run, op.args[TG_EXPERTS_CHOSEN], rows, plan);
    lay_out(form, form.up, plan, plan.up);
    lay_out(form, form.down, plan, plan.down);
  }
  run.barrier();
  const Share share = run.share(pairs);
  prepare_pairs(plan, form.up, plan.up, dtype, share, [&](int64_t at) { return run.row<T>(x, plan.pair[at] / form.top); });
  run.barrier();
  multiply_all(form, run, plan, form.up, plan.up, form.up_bias, plan.inner, 2 * form.neurons, dtype == TG_BF16);
  run.barrier();
  prepare_pairs(plan, form.down, plan.down, dtype, share, [&](int64_t at) {
    T *row = reinterpret_cast<T *>(plan.inner) + at * 2 * form.neurons;
    activate_part(form.activation, row, row, form.neurons, 0, form.neurons);  // over its own gates
    return row;
  });
  run.barrier();
  char *out = reinterpret_cast<char *>(plan.out);
  multiply_all(form, run, plan, form.down, plan.down, form.down_bias, out, form.down[0]->outs, false);
  run.barrier();
  sum_up<T>(form, run, plan, y, op.args[TG_EXPERTS_SHARES]);
}

void experts_run(const tg_op &op, const Run &run) {
  by_dtype(run.buffer(op.args[TG_EXPERTS_X]).dtype, [&](auto t) { experts_as<typename decltype(t)::type>(op, run); });
}

// Whether rows of x have the same form for both.
TG_INLINE bool is_alike(const tg_weight *a, const tg_weight *b) {
  return a->format == b->format || (is_bf16(a->format) && is_bf16(b->format));
}

const char *experts_check(const tg_op &op, const Shape &shape) {
  const int64_t x = op.args[TG_EXPERTS_X], y = op.args[TG_EXPERTS_Y];
  const int64_t chosen = op.args[TG_EXPERTS_CHOSEN], shares = op.args[TG_EXPERTS_SHARES];
  if (!shape.is_float(x) || !shape.is_float(y) || !shape.is_buffer(chosen) || !shape.is_buffer(shares)) {
    return "experts: a buffer is missing, or x or y is not of floats";
  }
  const tg_buffer &from = shape.buffers[x], &to = shape.buffers[y], &ids = shape.buffers[chosen], &of = shape.buffers[shares];
  if (ids.dtype != TG_I32 || of.dtype != TG_F32 || ids.width != of.width) return "experts: the choice is not one of TG_ROUTE";
  if (from.dtype != to.dtype || from.extent != to.extent || from.extent != ids.extent || from.extent != of.extent) {
    return "experts: the buffers differ in dtype or rows";
  }
  if (op.args[TG_EXPERTS_COUNT] < 1 || op.args[TG_EXPERTS_UP] == 0 || op.args[TG_EXPERTS_DOWN] == 0) {
    return "experts: there are none";
  }
  const Experts form = read_form(op, shape.buffers);
  for (int64_t e = 0; e < form.count; e++) {
    const tg_weight *up = form.up[e], *down = form.down[e];
    if (!is_alike(up, form.up[0]) || !is_alike(down, form.down[0])) return "experts: their formats differ";
    if (up->ins != from.width || up->outs != 2 * form.neurons || down->ins != form.neurons || down->outs != to.width) {
      return "experts: the shape of a weight does not fit";
    }
  }
  if (!is_activation(form.activation.kind, true)) return "experts: no such activation";
  return nullptr;
}

Scratch experts_scratch(const tg_op &op, const Shape &shape) {
  const Experts form = read_form(op, shape.buffers);
  const int64_t x = op.args[TG_EXPERTS_X], pairs = shape.max_rows(x) * form.top;
  const Plan plan(form, pairs, shape.buffers[x].dtype == TG_BF16 ? 2 : 4, reinterpret_cast<char *>(kAlign));  // for its size alone
  int64_t tiles = 0;
  for (int64_t e = 0; e < form.count; e++) {
    tiles = most(tiles, most(tile_scratch(form.up[e], pairs), tile_scratch(form.down[e], pairs)));
  }
  return {plan.bytes, tiles};
}

}  // namespace

extern const Kernel experts = {experts_run, experts_check, experts_scratch};

}  // namespace tg::TG_ISA
