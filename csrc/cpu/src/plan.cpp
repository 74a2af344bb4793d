// Plans: checked once when they are made, then run by all workers side by side with a barrier between operations.
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "pool.h"

struct tg_plan {
  const tg::Kernel **kernels = nullptr;  // [op_count]
  tg_pool *pool = nullptr;
  tg_op *ops = nullptr;
  tg_buffer *buffers = nullptr;
  char *scratch = nullptr;
  tg::Scratch sizes = {0, 0};  // multiples of 64; `scratch` is the shared part, then each worker's
  int64_t op_count = 0;
  tg::Shape shape = {};
  const tg_step *step = nullptr;  // of the run that is under way
  int64_t *profile = nullptr;
};

namespace tg {
namespace {

constexpr int64_t kHugePage = 2 << 20;
constexpr int64_t kDtypeBytes[] = {4, 2, 2, 1, 1, 4, 8};

int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<int64_t>(time.tv_sec) * 1000000000 + time.tv_nsec;
}

bool refuse(const char *what, int64_t index, const char *why) {
  char sentence[256];
  snprintf(sentence, sizeof sentence, "%s %lld: %s", what, static_cast<long long>(index), why);
  set_error(sentence);
  return false;
}

bool resolve(tg_plan *plan, const tg_plan_options *options) {
  for (int64_t i = 0; i < options->buffer_count; i++) {
    tg_buffer &buffer = plan->buffers[i];
    if (buffer.dtype < TG_F32 || buffer.dtype > TG_I64) return refuse("buffer", i, "no such dtype");
    if (buffer.extent != TG_TOKENS && buffer.extent != TG_OUTPUTS) return refuse("buffer", i, "no such extent");
    if (buffer.width < 1 || buffer.stride < buffer.width) return refuse("buffer", i, "its rows overlap or are empty");
    if (buffer.address != nullptr) continue;
    const int64_t rows = plan->shape.max_rows(i);
    const int64_t bytes = rows == 0 ? 0 : ((rows - 1) * buffer.stride + buffer.width) * kDtypeBytes[buffer.dtype];
    if (buffer.offset < 0 || buffer.offset + bytes > options->arena_bytes) return refuse("buffer", i, "it leaves the arena");
    if (buffer.offset % kDtypeBytes[buffer.dtype] != 0) return refuse("buffer", i, "its offset is not aligned");
    buffer.address = static_cast<char *>(options->arena) + buffer.offset;
  }
  return true;
}

bool check(tg_plan *plan, KernelTable table) {
  for (int64_t i = 0; i < plan->op_count; i++) {
    const tg_op &op = plan->ops[i];
    const Kernel *kernel = table(op.kind);
    if (kernel == nullptr) return refuse("operation", i, "these kernels have none of its kind");
    const char *why = kernel->check == nullptr ? nullptr : kernel->check(op, plan->shape);
    if (why != nullptr) return refuse("operation", i, why);
    if (kernel->scratch != nullptr) {
      const Scratch needed = kernel->scratch(op, plan->shape);
      plan->sizes.shared = most(plan->sizes.shared, round_up(needed.shared, 64));
      plan->sizes.worker = most(plan->sizes.worker, round_up(needed.worker, 64));
    }
    plan->kernels[i] = kernel;
  }
  return true;
}

template <typename T>
T *copied(const T *from, int64_t count) {
  T *to = static_cast<T *>(malloc(most(count, 1) * sizeof(T)));
  if (to != nullptr && count > 0) memcpy(to, from, count * sizeof(T));
  return to;
}

void work(void *argument, int32_t worker) {
  const tg_plan *plan = static_cast<const tg_plan *>(argument);
  char *own = plan->scratch + plan->sizes.shared + worker * plan->sizes.worker;
  const Run run = {plan->step, plan->buffers, plan->scratch, own, plan->pool, worker, plan->shape.workers};
  int64_t *profile = worker == 0 ? plan->profile : nullptr;
  int64_t begun = profile == nullptr ? 0 : now_ns();
  for (int64_t i = 0; i < plan->op_count; i++) {
    plan->kernels[i]->run(plan->ops[i], run);
    if (i + 1 < plan->op_count && plan->kernels[i + 1]->ahead != nullptr) plan->kernels[i + 1]->ahead(plan->ops[i + 1], run);
    // Behind the last one whoever runs the plan has a barrier; a profile has that wait in the operation's time.
    if (i + 1 < plan->op_count || plan->profile != nullptr) run.barrier();
    if (profile == nullptr) continue;
    const int64_t ended = now_ns();
    profile[i] += ended - begun;
    begun = ended;
  }
}

void follow(void *argument, int32_t worker) {
  const tg_following *following = static_cast<const tg_following *>(argument);
  tg_pool *pool = following->layers->pool;
  work(following->layers, worker);
  pool_barrier(pool);
  if (worker == 0) memcpy(following->to, following->from, following->bytes);
  pool_barrier(pool);
  work(following->head, worker);
  if (following->drawing == nullptr) return;
  pool_barrier(pool);
  work(following->drawing, worker);
}

bool takes(tg_plan *plan, const tg_step *step) {
  const Shape &shape = plan->shape;
  plan->step = step;
  if (step->tokens >= 1 && step->tokens <= shape.max_tokens && step->outputs >= 0 && step->outputs <= shape.max_outputs &&
      step->segments >= 0 && step->segments <= shape.max_segments) {
    return true;
  }
  set_error("the step has more tokens, outputs or segments than the plan was made for");
  return false;
}

bool begin_blocks(const tg_following *following, const int32_t *begun, int64_t count) {
  const tg_step *step = following->step;
  for (int64_t i = 0; i < count; i++) {
    const int64_t sequence = begun[2 * i], page = begun[2 * i + 1];
    if (sequence < 0 || sequence >= step->tokens) return set_error("a block begins for a sequence that is not there"), false;
    const int64_t size = step->group->block_size, stride = step->group->table_stride, at = step->starts[sequence] / size;
    if (at >= stride) return set_error("a block begins that the table has no place for"), false;
    following->table[sequence * stride + at] = static_cast<int32_t>(page);
    following->places[sequence] = page * size;
  }
  return true;
}

}  // namespace

tg_plan *plan_create(KernelTable table, tg_pool *pool, const tg_plan_options *options) {
  if (pool == nullptr || options == nullptr) return set_error("a plan needs a pool and options"), nullptr;
  if (options->op_count < 0 || options->buffer_count < 0 || options->arena_bytes < 0 || options->max_tokens < 1 ||
      options->max_outputs < 0 || options->max_segments < 0 || options->max_context < 0) {
    return set_error("a plan's sizes are not negative, and max_tokens is at least 1"), nullptr;
  }
  if (reinterpret_cast<uintptr_t>(options->arena) % 64 != 0) return set_error("the arena is not aligned to 64 bytes"), nullptr;
  tg_plan *plan = static_cast<tg_plan *>(malloc(sizeof(tg_plan)));
  if (plan == nullptr) return set_error("no memory for a plan"), nullptr;
  *plan = {};
  plan->pool = pool;
  plan->ops = copied(options->ops, options->op_count);
  plan->buffers = copied(options->buffers, options->buffer_count);
  plan->kernels = static_cast<const Kernel **>(calloc(most(options->op_count, 1), sizeof(Kernel *)));
  plan->op_count = options->op_count;
  plan->shape = {plan->buffers,         options->buffer_count, options->max_tokens, options->max_outputs,
                 options->max_segments, options->max_context,  pool_workers(pool)};
  bool good = plan->ops != nullptr && plan->buffers != nullptr && plan->kernels != nullptr;
  if (!good) set_error("no memory for a plan");
  good = good && resolve(plan, options) && check(plan, table);
  const int64_t bytes = plan->sizes.shared + plan->sizes.worker * plan->shape.workers;
  if (good && bytes > 0) {
    void *memory = nullptr;
    good = posix_memalign(&memory, bytes < kHugePage ? 64 : kHugePage, bytes) == 0;
    plan->scratch = static_cast<char *>(memory);
    if (good) {
      if (bytes >= kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
      memset(plan->scratch, 0, bytes);  // touched now, so that no run meets a page for the first time
    } else {
      set_error("no memory for a plan's scratch");
    }
  }
  if (good) return plan;
  plan_destroy(plan);
  return nullptr;
}

int32_t plan_run(tg_plan *plan, const tg_step *step) {
  if (!takes(plan, step)) return -1;
  pool_run(plan->pool, work, plan);
  return 0;
}

int32_t plan_follow(const tg_following *following, const int32_t *begun, int64_t begun_count, int32_t keep) {
  const int64_t tokens = following->step->tokens;
  tg_plan *drawing = following->drawing;
  const tg_pool *pool = following->layers->pool;
  if (following->head->pool != pool || (drawing != nullptr && drawing->pool != pool) || following->rows->tokens != tokens) {
    return set_error("the head has other threads or another number of tokens than the layers"), -1;
  }
  if (!takes(following->layers, following->step) || !takes(following->head, following->rows)) return -1;
  if (drawing != nullptr && !takes(drawing, following->rows)) return -1;
  if (!begin_blocks(following, begun, begun_count)) return -1;
  for (int64_t i = 0; i < tokens; i++) following->ids[i] = following->last[following->slots[i]];
  pool_run(following->layers->pool, follow, const_cast<tg_following *>(following));
  for (int64_t column = 0; column < following->moving_count; column++) {
    for (int64_t i = 0; i < tokens; i++) following->moving[column][i]++;
  }
  for (int64_t i = 0; i < tokens; i++) {
    if (!__builtin_isfinite(following->logprobs[i])) return 1;
  }
  for (int64_t i = 0; keep != 0 && i < tokens; i++) following->last[following->slots[i]] = following->found[i];
  for (int64_t i = 0; drawing != nullptr && i < tokens; i++) {
    tg_draw &draw = following->draws[i];
    if (keep != 0 && draw.history != nullptr) draw.history[draw.position] = static_cast<int32_t>(following->found[i]);
    draw.position++;
  }
  return 0;
}

void plan_profile(tg_plan *plan, int64_t *nanoseconds) { plan->profile = nanoseconds; }

void plan_destroy(tg_plan *plan) {
  if (plan == nullptr) return;
  free(plan->ops);
  free(plan->buffers);
  free(plan->kernels);
  free(plan->scratch);
  free(plan);
}

}  // namespace tg
