// Rows of the hidden state: looked up, gathered, normed, added.
#include "rows.h"

namespace tg::TG_ISA {
namespace {

constexpr int64_t kPicked = 256;  // columns of a row that one worker picks: often there is only one row

TG_INLINE int64_t within(int64_t index, int64_t count) { return index < 0 ? 0 : (index < count ? index : count - 1); }

template <typename W, typename T>
void embed_rows(const tg_op &op, const Run &run) {
  const int64_t y = op.args[TG_EMBED_Y], width = run.buffer(y).width, rows = op.args[TG_EMBED_ROWS];
  const W *table = address<const W>(op.args[TG_EMBED_TABLE]);
  const int64_t *index = op.flags & TG_EMBED_BY_POSITION ? run.step->positions : run.step->ids;
  const float factor = static_cast<float>(op.numbers[TG_EMBED_FACTOR]);
  const bool add = op.flags & TG_ADD;
  const Share share = run.share(run.step->tokens);
  for (int64_t token = share.begin; token < share.end; token++) {
    const W *from = table + within(index[token] + op.args[TG_EMBED_OFFSET], rows) * width;
    T *to = run.row<T>(y, token);
    by_vector(0, width, [&](int64_t i, int lanes) {
      Vec v = load_lanes(from + i, lanes) * factor;
      if (add) v += load_lanes(to + i, lanes);
      store_lanes(to + i, v, lanes);
    });
  }
}

// From a packed weight, as weight.cpp lays it out: a table that is the head too is in memory once.
template <typename T>
void embed_packed(const tg_op &op, const Run &run) {
  const tg_weight *weight = address<const tg_weight>(op.args[TG_EMBED_TABLE]);
  const int64_t y = op.args[TG_EMBED_Y], width = run.buffer(y).width;
  const int64_t *index = op.flags & TG_EMBED_BY_POSITION ? run.step->positions : run.step->ids;
  const float factor = static_cast<float>(op.numbers[TG_EMBED_FACTOR]);
  const bool add = op.flags & TG_ADD;
  const Share share = run.share(run.step->tokens);
  for (int64_t token = share.begin; token < share.end; token++) {
    const int64_t row = within(index[token] + op.args[TG_EMBED_OFFSET], op.args[TG_EMBED_ROWS]), lane = row % kPanel;
    const uint8_t *panel = weight->values + row / kPanel * weight->panel_bytes;
    const Compact *head = reinterpret_cast<const Compact *>(panel);
    const uint8_t *codes = panel + weight->panel_bytes - weight->value_bytes;
    uint32_t spill = 0;
    T *to = run.row<T>(y, token);
    for (int64_t i = 0; i < width; i++) {
      float value;
      switch (weight->format) {
        case TG_WEIGHT_F32: value = reinterpret_cast<const float *>(panel)[i * kPanel + lane]; break;
        case TG_WEIGHT_F16: value = to_float(reinterpret_cast<const Half *>(panel)[i * kPanel + lane]); break;
        case TG_WEIGHT_INT8: {  // a table's numbers are rounded to the type of the rows before anything is made of them
          T number;
          put(&number, weight->scales[row] * static_cast<float>(panel[(i / 4 * kPanel + lane) * 4 + i % 4] - 128));
          value = to_float(number);
          break;
        }
        case TG_WEIGHT_BF16_COMPACT: {
          while (spill < head->count && head->spills[spill].place < i * kPanel + lane) spill++;
          const bool spilled = spill < head->count && head->spills[spill].place == i * kPanel + lane;
          value = to_float(Bf16{spilled ? head->spills[spill].number : compact_number(head, codes, i, lane)});
          break;
        }
        default: value = to_float(reinterpret_cast<const Bf16 *>(panel)[(i / 2 * kPanel + lane) * 2 + i % 2]);
      }
      value *= factor;
      put(to + i, add ? value + to_float(to[i]) : value);
    }
  }
}

void embed_run(const tg_op &op, const Run &run) {
  if (op.flags & TG_EMBED_PACKED) {
    by_dtype(run.buffer(op.args[TG_EMBED_Y]).dtype, [&](auto t) { embed_packed<typename decltype(t)::type>(op, run); });
    return;
  }
  by_stored(op.args[TG_EMBED_DTYPE], [&](auto w) {
    by_dtype(run.buffer(op.args[TG_EMBED_Y]).dtype, [&](auto t) {
      embed_rows<typename decltype(w)::type, typename decltype(t)::type>(op, run);
    });
  });
}

const char *embed_check(const tg_op &op, const Shape &shape) {
  if (!shape.is_float(op.args[TG_EMBED_Y])) return "embed: y is no buffer of float32 or bfloat16";
  if (op.args[TG_EMBED_TABLE] == 0 || op.args[TG_EMBED_ROWS] < 1) return "embed: the table is empty";
  if (op.flags & TG_EMBED_PACKED) {
    const tg_weight *weight = address<const tg_weight>(op.args[TG_EMBED_TABLE]);
    const int32_t format = weight->format;
    const bool halves = format == TG_WEIGHT_BF16 || format == TG_WEIGHT_BF16_COMPACT || format == TG_WEIGHT_F16;
    const bool known = format == TG_WEIGHT_F32 || halves || format == TG_WEIGHT_INT8;
    if (!known || weight->ins != shape.buffers[op.args[TG_EMBED_Y]].width || weight->outs < op.args[TG_EMBED_ROWS]) {
      return "embed: the weight is no table of floats or of 8 bits as wide as y";
    }
  } else if (!is_stored(op.args[TG_EMBED_DTYPE])) {
    return "embed: the table is not one of floats";
  }
  if (shape.buffers[op.args[TG_EMBED_Y]].extent != TG_TOKENS) return "embed: y has a row for each output, not for each token";
  return nullptr;
}

void gather_run(const tg_op &op, const Run &run) {
  const tg_buffer &y = run.buffer(op.args[TG_GATHER_Y]);
  const int64_t bytes = y.width * (y.dtype == TG_BF16 ? 2 : 4);
  const Share share = run.share(run.step->outputs);
  for (int64_t i = share.begin; i < share.end; i++) {
    const int64_t from = within(run.step->sampled[i], run.step->tokens);
    if (y.dtype == TG_BF16) {
      memcpy(run.row<Bf16>(op.args[TG_GATHER_Y], i), run.row<Bf16>(op.args[TG_GATHER_X], from), bytes);
    } else {
      memcpy(run.row<float>(op.args[TG_GATHER_Y], i), run.row<float>(op.args[TG_GATHER_X], from), bytes);
    }
  }
}

const char *gather_check(const tg_op &op, const Shape &shape) {
  const int64_t x = op.args[TG_GATHER_X], y = op.args[TG_GATHER_Y];
  if (!shape.is_float(x) || !shape.is_float(y)) return "gather: x and y are not both buffers of float32 or bfloat16";
  if (shape.buffers[x].dtype != shape.buffers[y].dtype || shape.buffers[x].width != shape.buffers[y].width) {
    return "gather: x and y differ in dtype or width";
  }
  if (shape.buffers[x].extent != TG_TOKENS || shape.buffers[y].extent != TG_OUTPUTS) {
    return "gather: x is not by token, or y not by output";
  }
  return nullptr;
}

void move_run(const tg_op &op, const Run &run) {
  const int64_t x = op.args[TG_MOVE_X], y = op.args[TG_MOVE_Y], units = op.args[TG_MOVE_UNITS];
  const Share share = run.share(run.rows(y) * units);
  by_dtype(run.buffer(y).dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    for (int64_t i = share.begin; i < share.end; i++) {
      const int64_t row = i / units, unit = i % units;
      memcpy(run.row<T>(y, row) + unit * op.args[TG_MOVE_Y_STEP], run.row<T>(x, row) + unit * op.args[TG_MOVE_X_STEP],
             op.args[TG_MOVE_WIDTH] * sizeof(T));
    }
  });
}

const char *move_check(const tg_op &op, const Shape &shape) {
  const int64_t x = op.args[TG_MOVE_X], y = op.args[TG_MOVE_Y];
  const int64_t units = op.args[TG_MOVE_UNITS], width = op.args[TG_MOVE_WIDTH];
  if (!shape.is_float(x) || !shape.is_float(y)) return "move: x and y are not both buffers of float32 or bfloat16";
  if (shape.buffers[x].dtype != shape.buffers[y].dtype || shape.buffers[x].extent != shape.buffers[y].extent) {
    return "move: x and y differ in dtype or rows";
  }
  if (units < 1 || width < 1 || op.args[TG_MOVE_X_STEP] < 0 || op.args[TG_MOVE_Y_STEP] < 0) return "move: there is nothing to move";
  if ((units - 1) * op.args[TG_MOVE_X_STEP] + width > shape.buffers[x].width ||
      (units - 1) * op.args[TG_MOVE_Y_STEP] + width > shape.buffers[y].width) {
    return "move: the columns leave x or y";
  }
  return nullptr;
}

void pick_run(const tg_op &op, const Run &run) {
  const int64_t x = op.args[TG_PICK_X], y = op.args[TG_PICK_Y], width = run.buffer(y).width;
  const int32_t *order = address<const int32_t>(op.args[TG_PICK_ORDER]);
  const int64_t runs = ceil_div(width, kPicked);
  const Share share = run.share(run.rows(y) * runs);
  by_dtype(run.buffer(y).dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    for (int64_t at = share.begin; at < share.end; at++) {
      const T *from = run.row<T>(x, at / runs);
      T *to = run.row<T>(y, at / runs);
      const int64_t begin = at % runs * kPicked;
      for (int64_t i = begin; i < least(begin + kPicked, width); i++) to[i] = from[order[i]];
    }
  });
}

const char *pick_check(const tg_op &op, const Shape &shape) {
  const int64_t x = op.args[TG_PICK_X], y = op.args[TG_PICK_Y];
  if (!shape.is_float(x) || !shape.is_float(y)) return "pick: x and y are not both buffers of float32 or bfloat16";
  const tg_buffer &from = shape.buffers[x], &to = shape.buffers[y];
  if (from.dtype != to.dtype || from.extent != to.extent) return "pick: x and y differ in dtype or rows";
  if (from.address == to.address) return "pick: y lies on x";
  const int32_t *order = address<const int32_t>(op.args[TG_PICK_ORDER]);
  if (order == nullptr) return "pick: there is no order";
  for (int64_t i = 0; i < to.width; i++) {
    if (order[i] < 0 || order[i] >= from.width) return "pick: a column leaves x";
  }
  return nullptr;
}

void norm_run(const tg_op &op, const Run &run) {
  const tg_buffer &x = run.buffer(op.args[TG_NORM_X]);
  const int64_t size = op.args[TG_NORM_SIZE] > 0 ? op.args[TG_NORM_SIZE] : x.width;
  const int64_t units = x.width / size, weights = op.args[TG_NORM_UNITS];
  const NormForm form = {{address<void>(op.args[TG_NORM_WEIGHT]), op.args[TG_NORM_WEIGHT_DTYPE]},
                         {address<void>(op.args[TG_NORM_BIAS]), op.args[TG_NORM_BIAS_DTYPE]},
                         static_cast<float>(op.numbers[TG_NORM_EPS]),
                         (op.flags & TG_LAYER_NORM) != 0};
  const Share share = run.share(run.rows(op.args[TG_NORM_X]) * units);
  by_dtype(x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    for (int64_t i = share.begin; i < share.end; i++) {
      const int64_t row = i / units, unit = i % units;
      const T *from = run.row<T>(op.args[TG_NORM_X], row) + unit * size;
      norm_row(from, run.row<T>(op.args[TG_NORM_Y], row) + unit * size, size, form, weights > 1 ? unit * size : 0);
    }
  });
}

const char *norm_check(const tg_op &op, const Shape &shape) {
  const int64_t x = op.args[TG_NORM_X], y = op.args[TG_NORM_Y], size = op.args[TG_NORM_SIZE];
  if (!shape.is_float(x) || !shape.is_float(y)) return "norm: x and y are not both buffers of float32 or bfloat16";
  const tg_buffer &from = shape.buffers[x], &to = shape.buffers[y];
  if (from.dtype != to.dtype || from.width != to.width || from.extent != to.extent) return "norm: x and y differ";
  if (size < 0 || (size > 0 && from.width % size != 0)) return "norm: the width is not a multiple of what is normed";
  const int64_t units = op.args[TG_NORM_UNITS];
  if (units > 1 && (size == 0 || units != from.width / size)) return "norm: the weight has too few rows or too many";
  if (!is_parameter(op.args[TG_NORM_WEIGHT], op.args[TG_NORM_WEIGHT_DTYPE]) ||
      !is_parameter(op.args[TG_NORM_BIAS], op.args[TG_NORM_BIAS_DTYPE])) {
    return "norm: weight or bias is neither float32 nor bfloat16";
  }
  return nullptr;
}

void add_run(const tg_op &op, const Run &run) {
  const tg_buffer &x = run.buffer(op.args[TG_ADD_X]);
  const int64_t z = op.args[TG_ADD_Z];
  const NormForm form = {{address<void>(op.args[TG_ADD_WEIGHT]), op.args[TG_ADD_WEIGHT_DTYPE]},
                         {address<void>(op.args[TG_ADD_BIAS]), op.args[TG_ADD_BIAS_DTYPE]},
                         static_cast<float>(op.numbers[TG_ADD_EPS]),
                         (op.flags & TG_LAYER_NORM) != 0};
  const float factor = static_cast<float>(op.numbers[TG_ADD_FACTOR]);
  const Share share = run.share(run.rows(op.args[TG_ADD_X]));
  by_dtype(x.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    for (int64_t row = share.begin; row < share.end; row++) {
      T *to = run.row<T>(op.args[TG_ADD_X], row);
      const T *from = run.row<T>(op.args[TG_ADD_Y], row);
      by_vector(0, x.width, [&](int64_t i, int lanes) {
        store_lanes(to + i, fma(load_lanes(from + i, lanes), splat(factor), load_lanes(to + i, lanes)), lanes);
      });
      if (z >= 0) norm_row(to, run.row<T>(z, row), x.width, form, 0);
    }
  });
}

const char *add_check(const tg_op &op, const Shape &shape) {
  const int64_t x = op.args[TG_ADD_X], z = op.args[TG_ADD_Z];
  const int64_t others[] = {op.args[TG_ADD_Y], z < 0 ? x : z};
  for (const int64_t other : others) {
    if (!shape.is_float(x) || !shape.is_float(other)) return "add: a buffer is neither float32 nor bfloat16";
    const tg_buffer &a = shape.buffers[x], &b = shape.buffers[other];
    if (a.dtype != b.dtype || a.width != b.width || a.extent != b.extent) return "add: the buffers differ";
  }
  if (!is_parameter(op.args[TG_ADD_WEIGHT], op.args[TG_ADD_WEIGHT_DTYPE]) ||
      !is_parameter(op.args[TG_ADD_BIAS], op.args[TG_ADD_BIAS_DTYPE])) {
    return "add: weight or bias is neither float32 nor bfloat16";
  }
  return nullptr;
}

}  // namespace

extern const Kernel embed = {embed_run, embed_check, nullptr};
extern const Kernel gather_rows = {gather_run, gather_check, nullptr};
extern const Kernel norm = {norm_run, norm_check, nullptr};
extern const Kernel add_rows = {add_run, add_check, nullptr};
extern const Kernel move = {move_run, move_check, nullptr};
extern const Kernel pick = {pick_run, pick_check, nullptr};

}  // namespace tg::TG_ISA
