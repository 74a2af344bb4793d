// Paged attention: decode and prompt chunks side by side, cut into equal work for all workers.
//
// The units of all tasks stand in one line, and each worker takes a stretch of it. Where a stretch ends within a task, whoever
// began that task joins the parts after a barrier. So one long sequence keeps every worker busy, and many short ones need
// no barrier.
#include "attention.h"

namespace tg::TG_ISA {
namespace {

constexpr int64_t kAlign = 64;
constexpr int64_t kUnitsEach = 12;  // units for each worker, so that all have about as much
constexpr int64_t kWholeBelow = 8;  // a task with less than 1 / kWholeBelow of a worker's share is not cut

Attention read_form(const tg_op &op, const tg_buffer *buffers) {
  Attention form = {};
  form.q = op.args[TG_ATTENTION_Q];
  form.y = op.args[TG_ATTENTION_Y];
  form.heads = op.args[TG_ATTENTION_HEADS];
  form.kv_heads = op.args[TG_ATTENTION_KV_HEADS];
  form.share = form.heads / form.kv_heads;
  form.head_dim = op.args[TG_ATTENTION_HEAD_DIM];
  form.value_dim = op.args[TG_ATTENTION_VALUE_DIM];
  form.window = op.args[TG_ATTENTION_WINDOW];
  form.distances = op.args[TG_ATTENTION_DISTANCES];
  form.key_stride = op.args[TG_ATTENTION_KEY_STRIDE];
  form.value_stride = op.args[TG_ATTENTION_VALUE_STRIDE];
  form.cache_dtype = op.args[TG_ATTENTION_CACHE_DTYPE];
  form.q_dtype = buffers[form.q].dtype;
  form.keys = address<const char>(op.args[TG_ATTENTION_KEYS]);
  form.values = address<const char>(op.args[TG_ATTENTION_VALUES]);
  form.key_scales = address<const float>(op.args[TG_ATTENTION_KEY_SCALES]);
  form.value_scales = address<const float>(op.args[TG_ATTENTION_VALUE_SCALES]);
  form.slopes = address<const float>(op.args[TG_ATTENTION_SLOPES]);
  form.sinks = address<const float>(op.args[TG_ATTENTION_SINKS]);
  form.biases = address<const float>(op.args[TG_ATTENTION_BIASES]);
  form.scale = static_cast<float>(op.numbers[TG_ATTENTION_SCALE]);
  form.cap = static_cast<float>(op.numbers[TG_ATTENTION_CAP]);
  // What instructions on bfloat16 multiply; integers of the cache become such.
  const bool pairs = form.q_dtype == TG_BF16 && (form.cache_dtype == TG_BF16 || form.cache_dtype == TG_I8);
  form.packs = kPacks && pairs;
  form.padded_dim = round_up(form.head_dim, pairs ? 32 : kChunk);
  form.value_lanes = round_up(form.value_dim, kChunk);
  form.padded_value = round_up(form.value_dim, 32);
  return form;
}

struct Sizes {
  int64_t rows, partial, scores, query, keys, values, weights;

  explicit Sizes(const Attention &form) {
    rows = form.packs ? kManyRows : kRows;
    const int64_t unit = form.packs ? kManyUnit : kUnit;
    partial = round_up(rows * (2 + form.padded_value) * 4, kAlign);
    const int64_t weighed = most(rows * kUnit, kBlock * kManyUnit);
    scores = weighed * 4;
    query = round_up(rows * form.padded_dim * 4, kAlign);
    keys = round_up(unit * form.padded_dim * 4, kAlign);
    values = round_up(unit * form.padded_value * 4, kAlign);
    weights = weighed * 2;
  }
  int64_t of_worker() const { return 2 * partial + scores + query + keys + values + weights; }
};

Partial partial_at(const Attention &form, const Sizes &sizes, char *at) {
  float *out = reinterpret_cast<float *>(at);
  float *top = out + sizes.rows * form.padded_value;
  return {top, top + sizes.rows, out};
}

Workspace workspace(const Attention &form, const Sizes &sizes, const Run &run) {
  char *at = run.scratch;
  Workspace space = {};
  space.head = partial_at(form, sizes, run.shared + run.worker * sizes.partial);
  space.tail = partial_at(form, sizes, at);
  space.whole = partial_at(form, sizes, at + sizes.partial);
  at += 2 * sizes.partial;
  space.scores = reinterpret_cast<float *>(at);
  space.query = at += sizes.scores;
  space.keys = at += sizes.query;
  space.values = at += sizes.keys;
  space.weights = at += sizes.values;
  return space;
}

// Goes through the tasks of a step: segments, heads of the cache, tiles of rows. Segments without tokens have none.
class Tasks {
 public:
  Tasks(const Attention &form, const tg_step &step) : form_(form), step_(step) { enter(); }

  bool done() const { return task_.segment >= step_.segments; }
  const Task &task() const { return task_; }

  void next() {
    if (++task_.tile < tiles_) return cut();
    task_.tile = 0;
    task_.kv_head += task_.heads;
    if (task_.kv_head < form_.kv_heads) return cut();
    task_.kv_head = 0;
    task_.output += form_.lengths[task_.segment++];
    enter();
  }

 private:
  void enter() {
    while (!done() && form_.lengths[task_.segment] == 0) task_.segment++;
    if (done()) return;
    const int64_t length = form_.lengths[task_.segment], rows = length * form_.share;
    const int64_t before = step_.lengths[task_.segment] - length;
    task_.many = form_.packs && rows > kRows;
    task_.few = form_.packs && kHasFew && rows <= kRows;
    task_.heads = task_.many ? 1 : form_.together;
    size_ = task_.many ? kManyRows : kRows;
    tiles_ = ceil_div(rows, size_);
    task_.token = step_.offsets[task_.segment] + before;
    task_.start = step_.starts[task_.segment] + before;
    cut();
  }

  void cut() {
    const int64_t rows = form_.lengths[task_.segment] * form_.share;
    task_.first = task_.tile * size_;
    task_.count = least(size_, rows - task_.first);
    task_.begin = form_.window > 0 ? most(0, task_.start + task_.first / form_.share - form_.window + 1) : 0;
    task_.end = task_.start + (task_.first + task_.count - 1) / form_.share + 1;
    task_.units = ceil_div(task_.end - task_.begin, task_.unit_keys());
    if (task_.few) {
      task_.weight = (kHasTiles ? 1200 + 30 * task_.count : 300 + 300 * task_.count) * task_.heads;
    } else if (task_.many) {
      task_.weight = kHasTiles ? 1500 + 90 * task_.count : 2500 + 700 * task_.count;
    } else {
      task_.weight = (100 + 350 * task_.count) * task_.heads;
    }
  }

  const Attention &form_;
  const tg_step &step_;
  Task task_ = {};
  int64_t size_ = 0, tiles_ = 0;
};

// Heads of the cache that are worked on together: rows of all of them are read one after the other, as they lie, but there
// must be enough tasks for all workers.
int64_t heads_together(const Attention &form, const tg_step &step, int64_t workers) {
  if (!form.packs) return 1;
  int64_t units = 0;
  for (int64_t i = 0; i < step.segments; i++) {
    const int64_t rows = form.lengths[i] * form.share;
    if (rows > 0 && rows <= kRows) units += ceil_div(step.starts[i] + step.lengths[i], kFewUnit);
  }
  int64_t together = least(form.kv_heads, kManyRows / kRows);
  const auto good = [&] {
    return form.kv_heads % together == 0 && units * (form.kv_heads / together) >= kUnitsEach * workers;
  };
  while (together > 1 && !good()) together--;
  return together;
}

// A place in the line of units: before unit `unit` of a task.
struct Place {
  int64_t segment = 0, kv_head = 0, tile = 0, unit = 0;

  bool is_in(const Task &task) const {
    return segment == task.segment && kv_head == task.kv_head && tile == task.tile;
  }
};

// Where the workers' stretches begin; the last place is the end. All workers reckon the same.
struct Cuts {
  Place at[kMostWorkers + 1];
  int64_t workers;
  bool any;  // within a task

  Cuts(const Attention &form, const tg_step &step, int64_t count) : workers(least(count, kMostWorkers)), any(false) {
    int64_t total = 0;
    for (Tasks tasks(form, step); !tasks.done(); tasks.next()) total += tasks.task().weight * tasks.task().units;
    int64_t before = 0, worker = 1;
    for (Tasks tasks(form, step); !tasks.done(); tasks.next()) {
      const Task &task = tasks.task();
      if (before == 0) at[0] = {task.segment, task.kv_head, task.tile, 0};
      const int64_t cost = task.weight * task.units;
      for (; worker < workers; worker++) {
        const int64_t within = total * worker / workers - before;
        if (within > cost) break;
        int64_t unit = (within + task.weight / 2) / task.weight;
        if (cost * kWholeBelow * workers <= total) unit = 2 * within >= cost ? task.units : 0;
        at[worker] = {task.segment, task.kv_head, task.tile, least(unit, task.units)};
        any = any || (at[worker].unit > 0 && at[worker].unit < task.units);
      }
      before += cost;
    }
    at[workers] = {step.segments, 0, 0, 0};
    for (; worker < workers; worker++) at[worker] = at[workers];
  }
};

void clear(const Attention &form, const Task &task, const Partial &partial) {
  each_head(form, task, partial, [&](const Task &one, const Partial &own) {
    for (int64_t row = 0; row < one.count; row++) {
      own.top[row] = kNever;
      own.total[row] = 0;
    }
    memset(own.out, 0, round_up(one.count, one.many ? kBlock : 1) * form.padded_value * sizeof(float));
  });
}

template <typename T>
void finish(const Attention &form, const Task &task, const Run &run, const Partial &partial) {
  for (int64_t row = 0; row < task.count; row++) {
    const int64_t at = task.first + row, head = task.kv_head * form.share + at % form.share;
    float total = partial.total[row];
    if (form.sinks != nullptr) total += __builtin_exp2f(form.sinks[head] * kLog2e - partial.top[row]);
    const float *from = partial.out + row * form.padded_value;
    T *to = run.row<T>(form.y, task.output + at / form.share) + head * form.value_dim;
    const float factor = 1.0f / total;
    by_vector(0, form.value_dim, [&](int64_t i, int lanes) { store_lanes(to + i, load(from + i) * factor, lanes); });
  }
}

void write_out(const Attention &form, const Task &task, const Run &run, const Partial &partial) {
  by_dtype(run.buffer(form.y).dtype, [&](auto t) {
    each_head(form, task, partial, [&](const Task &one, const Partial &own) {
      finish<typename decltype(t)::type>(form, one, run, own);
    });
  });
}

// Adds what another worker has found of the same rows.
void join(const Attention &form, const Task &task, const Partial &into, const Partial &from) {
  for (int64_t head = 0; head < task.heads; head++) {
    for (int64_t row = head * kRows; row < head * kRows + task.count; row++) {
      const float top = __builtin_fmaxf(into.top[row], from.top[row]);
      if (top == kNever) continue;
      const float mine = exp2_one(into.top[row] - top), other = exp2_one(from.top[row] - top);
      into.top[row] = top;
      into.total[row] = into.total[row] * mine + from.total[row] * other;
      float *to = into.out + row * form.padded_value;
      const float *add = from.out + row * form.padded_value;
      for (int64_t i = 0; i < form.value_lanes; i += kLanes) store(to + i, load(to + i) * mine + load(add + i) * other);
    }
  }
}

void attention_run(const tg_op &op, const Run &run) {
  Attention form = read_form(op, run.buffers);
  form.group = run.step->group + op.args[TG_ATTENTION_GROUP];
  form.lengths = run.buffer(form.y).extent == TG_OUTPUTS ? run.step->tails : run.step->lengths;
  form.together = heads_together(form, *run.step, run.workers);
  const Sizes sizes(form);
  const Cuts cuts(form, *run.step, run.workers);
  const Workspace space = workspace(form, sizes, run);
  Task cut = {};  // what this worker has begun and another goes on with
  bool has_cut = false;
  if (run.worker < cuts.workers) {
    const Place begin = cuts.at[run.worker], end = cuts.at[run.worker + 1];
    Tasks tasks(form, *run.step);
    while (!tasks.done() && !begin.is_in(tasks.task())) tasks.next();
    bool asked = false;
    for (int64_t from = begin.unit; !tasks.done(); tasks.next(), from = 0) {
      const Task &task = tasks.task();
      const bool last = end.is_in(task);
      const int64_t to = last ? end.unit : task.units;
      if (from < to) {
        const bool begun = from == 0, ended = to == task.units;
        const Partial &partial = !begun ? space.head : (!ended ? space.tail : space.whole);
        clear(form, task, partial);
        Tasks following = tasks;
        if (!last) following.next();
        const bool goes_on = !last && !following.done() && (!end.is_in(following.task()) || end.unit > 0);
        const Task *then = goes_on && !following.task().many ? &following.task() : nullptr;
        if (task.few) {
          attend_few(form, task, run, space, partial, from, to, asked, then);
        } else if (task.many) {
          attend_many(form, task, run, space, partial, from, to);
        } else {
          attend_by_vectors(form, task, run, space, partial, from, to, asked, then);
        }
        asked = then != nullptr && !task.many;
        if (begun && ended) write_out(form, task, run, partial);
        if (begun && !ended) cut = task, has_cut = true;
      }
      if (last) break;
    }
  }
  if (!cuts.any) return;
  run.barrier();
  if (!has_cut) return;
  for (int64_t worker = run.worker + 1; worker < cuts.workers && cuts.at[worker].is_in(cut); worker++) {
    const int64_t to = cuts.at[worker + 1].is_in(cut) ? cuts.at[worker + 1].unit : cut.units;
    if (cuts.at[worker].unit < to) {
      join(form, cut, space.tail, partial_at(form, sizes, run.shared + worker * sizes.partial));
    }
  }
  write_out(form, cut, run, space.tail);
}

Scratch attention_scratch(const tg_op &op, const Shape &shape) {
  const Sizes sizes(read_form(op, shape.buffers));
  return {least(shape.workers, kMostWorkers) * sizes.partial, sizes.of_worker()};
}

const char *attention_check(const tg_op &op, const Shape &shape) {
  const int64_t q = op.args[TG_ATTENTION_Q], y = op.args[TG_ATTENTION_Y];
  const int64_t heads = op.args[TG_ATTENTION_HEADS], kv_heads = op.args[TG_ATTENTION_KV_HEADS];
  const int64_t dim = op.args[TG_ATTENTION_HEAD_DIM], value_dim = op.args[TG_ATTENTION_VALUE_DIM];
  if (!shape.is_float(q) || !shape.is_float(y)) return "attention: q and y are not both buffers of float32 or bfloat16";
  if (kv_heads < 1 || heads < 1 || heads % kv_heads != 0) return "attention: the heads are no multiple of those of the cache";
  if (dim < 1 || value_dim < 1) return "attention: a head is empty";
  if (shape.buffers[q].width < heads * dim || shape.buffers[y].width < heads * value_dim) {
    return "attention: q or y is narrower than its heads";
  }
  if (shape.buffers[q].extent != TG_TOKENS) return "attention: q is not by token";
  const int64_t dtype = op.args[TG_ATTENTION_CACHE_DTYPE];
  if (!is_cached(dtype)) return "attention: the cache is not one of floats or 8-bit integers";
  if (dtype == TG_I8 && (op.args[TG_ATTENTION_KEY_SCALES] == 0 || op.args[TG_ATTENTION_VALUE_SCALES] == 0)) {
    return "attention: a cache of integers has no scales";
  }
  if (op.args[TG_ATTENTION_KEYS] == 0 || op.args[TG_ATTENTION_VALUES] == 0) return "attention: there is no cache";
  if (op.args[TG_ATTENTION_BIASES] != 0 && op.args[TG_ATTENTION_DISTANCES] < 1) return "attention: biases of no distance";
  if (op.args[TG_ATTENTION_GROUP] < 0 || op.args[TG_ATTENTION_WINDOW] < 0) return "attention: group or window is negative";
  return nullptr;
}

}  // namespace

extern const Kernel attention = {attention_run, attention_check, attention_scratch};

}  // namespace tg::TG_ISA
