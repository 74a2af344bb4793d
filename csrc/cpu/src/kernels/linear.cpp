// y = x W^T (+ bias), for every form of weight: x is brought into the form of the product, and the panels of the weight are
// shared out among the workers.
#include "linear.h"

namespace tg::TG_ISA {
namespace {

constexpr bool kPast = kLanes == 16;       // a vector is a line
constexpr int64_t kPastBytes = 2 << 20;    // of y: as much as second-level caches have
constexpr int64_t kAskedFirst = 16 << 10;  // bytes of the weight, by each worker

TG_INLINE const tg_weight *weight_of(const tg_op &op) { return reinterpret_cast<const tg_weight *>(op.args[0]); }

// Whether rows of x are in the form of a product by vectors as they are.
TG_INLINE bool is_prepared(const tg_weight *weight, const tg_buffer &x) {
  if (weight->padded != weight->ins) return false;
  if (x.dtype == TG_BF16) return is_bf16(weight->format) && !as_floats();
  return weight->format == TG_WEIGHT_F32 || weight->format == TG_WEIGHT_F16;
}

void run_linear(const tg_op &op, const Run &run) {
  const tg_weight *weight = weight_of(op);
  const tg_buffer &x = run.buffer(op.args[2]), &y = run.buffer(op.args[3]);
  const int64_t rows = run.rows(op.args[3]);
  if (rows == 0) return;
  const Layout layout = layout_of(weight, rows);
  const bool tiles = layout.way != Way::kVectors;
  // Rows that y is written over have to be copied.
  const bool as_it_is = !tiles && op.args[2] != op.args[3] && is_prepared(weight, x);
  // Who unpacks a weight does so for all rows. One row is prepared by each worker for itself: that takes less time than to meet.
  const bool alone = rows == 1, own = rows >= kOwnRows * run.workers && layout.way != Way::kUnpacked;
  char *space = alone ? run.scratch : run.shared;
  Share share = run.share(rows);
  if (alone) share = {0, 1};
  if (own) {
    share = run.share(ceil_div(rows, 32));
    share = {share.begin * 32, least(share.end * 32, rows)};
  }
  if (!as_it_is) prepare_rows(weight, x, share, space, layout);
  if (!alone && !own && !as_it_is) run.barrier();

  Linear job = {};
  job.weight = weight;
  job.bias = reinterpret_cast<const float *>(op.args[1]);
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
  job.panels = own ? Share{0, weight->panels} : run.share(weight->panels);
  if (tiles) {
    multiply_tiles(job, run.scratch);
  } else {
    multiply_rows(job);
  }
#if defined(__AVX512F__)
  if (job.past) _mm_sfence();  // or others might read what was there before
#endif
}

const char *check_linear(const tg_op &op, const Shape &shape) {
  if (op.args[0] == 0) return "it has no weight";
  const tg_weight *weight = weight_of(op);
  if (!shape.is_float(op.args[2]) || !shape.is_float(op.args[3])) return "x and y are float32 or bfloat16 buffers";
  const tg_buffer &x = shape.buffers[op.args[2]], &y = shape.buffers[op.args[3]];
  if (x.width != weight->ins || y.width != weight->outs) return "the widths of x and y are not those of the weight";
  if (x.extent != y.extent) return "x and y have different rows";
  return nullptr;
}

Scratch scratch_linear(const tg_op &op, const Shape &shape) {
  const tg_weight *weight = weight_of(op);
  const int64_t rows = shape.max_rows(op.args[3]);
  return {layout_of(weight, rows).bytes, most(layout_of(weight, 1).bytes, tile_scratch(weight, rows))};
}

// The first bytes of each panel that is read first: so many that the processor reads on by itself, or that a block of rows has
// something to do while it asks for more.
void ask_linear(const tg_op &op, const Run &run) {
  const tg_weight *weight = weight_of(op);
  const int64_t rows = run.rows(op.args[3]);
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
