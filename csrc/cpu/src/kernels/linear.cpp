// y = x W^T (+ bias), for every form of weight: x is brought into the form of the product, and the panels of the weight are
// shared out among the workers.
#include "linear.h"
#include "rows.h"

namespace tg::TG_ISA {
namespace {

constexpr bool kPast = kLanes == 16;       // a vector is a line
constexpr int64_t kPastBytes = 2 << 20;    // of y: as much as second-level caches have
constexpr int64_t kAskedFirst = 16 << 10;  // bytes of the weight, by each worker
constexpr int64_t kLeft = 16;              // the part of a worker's panels that is left to whoever is there first: 1 of so many
constexpr int64_t kLeftRows = 32;          // of products with at most so many rows, which wait for the memory
constexpr int64_t kTaken = 4;              // panels that are taken at a time
constexpr int64_t kFewRows = 4;            // for each worker: of fewer, workers share the columns that are activated

TG_INLINE const tg_weight *weight_of(const tg_op &op) { return address<const tg_weight>(op.args[TG_LINEAR_WEIGHT]); }

Before before_of(const tg_op &op) {
  Before before = {};
  before.kind = op.args[TG_LINEAR_BEFORE];
  before.norm = {{address<void>(op.args[TG_LINEAR_NORM_WEIGHT]), op.args[TG_LINEAR_NORM_WEIGHT_DTYPE]},
                 {address<void>(op.args[TG_LINEAR_NORM_BIAS]), op.args[TG_LINEAR_NORM_BIAS_DTYPE]},
                 static_cast<float>(op.numbers[TG_LINEAR_EPS]),
                 (op.flags & TG_LAYER_NORM) != 0};
  before.activation = {op.args[TG_LINEAR_ACTIVATION], before.kind == TG_BEFORE_GATED,
                       static_cast<float>(op.numbers[TG_LINEAR_LIMIT]), static_cast<float>(op.numbers[TG_LINEAR_ALPHA])};
  return before;
}

// A row of x between what it goes through and the form of the product.
TG_INLINE int64_t row_bytes(const tg_weight *weight) { return round_up(weight->ins * 4, 64); }

// Whether rows of x are in the form of a product by vectors as they are.
TG_INLINE bool is_prepared(const tg_weight *weight, const tg_buffer &x) {
  if (weight->padded != weight->ins) return false;
  if (x.dtype == TG_BF16) return is_bf16(weight->format) && !as_floats();
  return weight->format == TG_WEIGHT_F32 || weight->format == TG_WEIGHT_F16;
}

// `row` is room for one.
void prepare_rows(const tg_weight *weight, const tg_buffer &x, const Before &before, Share rows, char *to, const Layout &layout,
                  char *row) {
  by_dtype(x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    for (int64_t i = rows.begin; i < rows.end; i++) {
      const T *from = static_cast<const T *>(x.address) + i * x.stride;
      if (before.kind != TG_BEFORE_NOTHING) {
        go_through(before, from, reinterpret_cast<T *>(row), weight->ins);
        from = reinterpret_cast<T *>(row);
      }
      prepare_row(weight, from, x.dtype, i, to, layout);
    }
  });
}

// Calls multiply(panels) until all have been multiplied. Workers are not equally fast, least of all where others use the machine
// too: so the last panels of each share go to the worker that comes to them first.
template <typename F>
TG_INLINE void share_out(const Run &run, int64_t panels, int64_t rows, const F &multiply) {
  const int64_t workers = run.workers;
  const int64_t left = workers == 1 || rows > kLeftRows ? 0 : panels / workers / (kLeft * kTaken);  // times kTaken, of each share
  Share share = run.share(panels);
  share.end -= left * kTaken;
  multiply(share);
  if (left == 0) return;
  for (int64_t i = run.take(); i < left * workers; i = run.take()) {
    const int64_t begin = share_of(panels, i % workers, workers).end - (i / workers + 1) * kTaken;
    multiply(Share{begin, begin + kTaken});
  }
}

void run_linear(const tg_op &op, const Run &run) {
  const tg_weight *weight = weight_of(op);
  tg_buffer x = run.buffer(op.args[TG_LINEAR_X]);
  const tg_buffer &y = run.buffer(op.args[TG_LINEAR_Y]);
  const int64_t rows = run.rows(op.args[TG_LINEAR_Y]);
  if (rows == 0) return;
  const Layout layout = layout_of(weight, rows);
  Before before = before_of(op);
  if (before.activates() && rows < kFewRows * run.workers) {
    const int64_t stride = row_bytes(weight) / (x.dtype == TG_BF16 ? 2 : 4);
    const tg_buffer activated = {run.shared + round_up(layout.bytes, 64), 0, weight->ins, stride, x.dtype, x.extent};
    activate_rows(before.activation, run, x, activated, rows);
    run.barrier();
    x = activated;
    before.kind = TG_BEFORE_NOTHING;
  }
  const bool tiles = layout.way != Way::kVectors;
  // Rows that y is written over have to be copied.
  const bool as_it_is = !tiles && before.kind == TG_BEFORE_NOTHING && x.address != y.address && is_prepared(weight, x);
  // Who unpacks groups does so for all rows. One row is prepared by each worker for itself: that takes less time than to meet.
  const bool unpacks = layout.way == Way::kUnpacked && has_groups(weight);
  const bool alone = rows == 1, own = rows >= kOwnRows * run.workers && !unpacks;
  char *space = alone ? run.scratch : run.shared;
  Share share = run.share(rows);
  if (alone) share = {0, 1};
  if (own) {
    share = run.share(ceil_div(rows, 32));
    share = {share.begin * 32, least(share.end * 32, rows)};
  }
  if (!as_it_is) prepare_rows(weight, x, before, share, space, layout, run.scratch + layout_of(weight, 1).bytes);
  if (!alone && !own && !as_it_is) run.barrier();

  Linear job = {};
  job.weight = weight;
  job.bias = address<const float>(op.args[TG_LINEAR_BIAS]);
  job.y = static_cast<char *>(y.address);
  job.y_bf16 = y.dtype == TG_BF16;
  job.y_stride = y.stride * (job.y_bf16 ? 2 : 4);
  job.first = own ? share.begin : 0;
  job.rows = own ? share.end : rows;
  job.add = (op.flags & TG_ADD) != 0;
  const bool lines = (reinterpret_cast<uintptr_t>(job.y) | static_cast<uintptr_t>(job.y_stride)) % 64 == 0;
  job.past = kPast && lines && !job.y_bf16 && !job.add && rows * weight->outs * 4 >= kPastBytes;
  if (as_it_is) {
    job.x.values = static_cast<const char *>(x.address);
    job.x.row_bytes = x.stride * (x.dtype == TG_BF16 ? 2 : 4);
  } else {
    take_prepared(job, space, layout);
  }
  const auto multiply = [&](Share panels) {
    job.panels = panels;
    if (tiles) {
      multiply_tiles(job, run.scratch);
    } else {
      multiply_rows(job);
    }
  };
  if (own) {
    multiply(Share{0, weight->panels});
  } else {
    share_out(run, weight->panels, rows, multiply);
  }
#if defined(__AVX512F__)
  if (job.past) _mm_sfence();  // or others might read what was there before
#endif
}

const char *check_linear(const tg_op &op, const Shape &shape) {
  const int64_t from = op.args[TG_LINEAR_X], to = op.args[TG_LINEAR_Y], before = op.args[TG_LINEAR_BEFORE];
  if (op.args[TG_LINEAR_WEIGHT] == 0) return "it has no weight";
  const tg_weight *weight = weight_of(op);
  if (!shape.is_float(from) || !shape.is_float(to)) return "x and y are float32 or bfloat16 buffers";
  const tg_buffer &x = shape.buffers[from], &y = shape.buffers[to];
  const int64_t ins = (before == TG_BEFORE_GATED ? 2 : 1) * weight->ins;
  if (x.width != ins || y.width != weight->outs) return "the widths of x and y are not those of the weight";
  if (x.extent != y.extent) return "x and y have different rows";
  if (before == TG_BEFORE_NOTHING) return nullptr;
  if (before < TG_BEFORE_NOTHING || before > TG_BEFORE_GATED) return "rows cannot go through that";
  if (x.address == y.address) return "y lies on x, whose rows go through something before";
  if (before == TG_BEFORE_NORM) {
    const bool known = is_parameter(op.args[TG_LINEAR_NORM_WEIGHT], op.args[TG_LINEAR_NORM_WEIGHT_DTYPE]) &&
                       is_parameter(op.args[TG_LINEAR_NORM_BIAS], op.args[TG_LINEAR_NORM_BIAS_DTYPE]);
    return known ? nullptr : "the norm's weight or bias is neither float32 nor bfloat16";
  }
  return is_activation(op.args[TG_LINEAR_ACTIVATION], before == TG_BEFORE_GATED) ? nullptr : "no such activation";
}

Scratch scratch_linear(const tg_op &op, const Shape &shape) {
  const tg_weight *weight = weight_of(op);
  const int64_t rows = shape.max_rows(op.args[TG_LINEAR_Y]), row = row_bytes(weight);
  const Before before = before_of(op);
  const int64_t activated = before.activates() ? least(rows, kFewRows * shape.workers) * row : 0;
  const int64_t one = layout_of(weight, 1).bytes + (before.kind == TG_BEFORE_NOTHING ? 0 : row);
  return {round_up(layout_of(weight, rows).bytes, 64) + activated, most(one, tile_scratch(weight, rows))};
}

// The first bytes of each panel that is read first: so many that the processor reads on by itself, or that a block of rows has
// something to do while it asks for more.
void ask_linear(const tg_op &op, const Run &run) {
  const tg_weight *weight = weight_of(op);
  const int64_t rows = run.rows(op.args[TG_LINEAR_Y]);
  const int64_t streams = way_of(weight, rows) == Way::kVectors ? streams_of(weight, rows) : 1;
  const Share panels = run.share(weight->panels);
  const int64_t apart = (panels.end - panels.begin) / streams;
  if (rows == 0 || apart == 0) return;
  const int64_t bytes = least(kAskedFirst / streams, weight->panel_bytes);
  for (int64_t at = 0; at < bytes; at += 64) {
    for (int64_t s = 0; s < streams; s++) {
      __builtin_prefetch(weight->values + (panels.begin + s * apart) * weight->panel_bytes + at, 0, 2);
    }
  }
}

}  // namespace

const Kernel linear = {run_linear, check_linear, scratch_linear, ask_linear};

}  // namespace tg::TG_ISA
