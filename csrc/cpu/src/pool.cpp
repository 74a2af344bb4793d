// Persistent workers: they spin for a while after their last work, since the next step comes soon, and then sleep on a futex.
// A barrier spins too, which is what makes hundreds of operations a step cheap: but only where the cores are ours. Where others
// want them, who spins uses up its share of the core for nothing and has to wait when there is work, ten times as long as the
// step takes. So a thread that loses much of its time to others goes to sleep at once for a while, and then tries again. Much:
// to sleep and be woken at each barrier takes longer than most steps do, so a router that now and then has the core for some
// hundred microseconds, or a host that does, is waited for.
#include "pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <new>

namespace {

TG_INLINE void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t now_ns() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<int64_t>(time.tv_sec) * 1000000000 + time.tv_nsec;
}

constexpr int64_t kBarrierSpin = 500000;  // nanoseconds, as all; far above what uneven shares cost in a decode step
constexpr int64_t kCurtSpin = 4000;       // while others want the cores
constexpr int64_t kStolen = 100000;       // between two looks at the clock: somebody else had the core
constexpr int32_t kLooks = 16;            // turns between them
constexpr int64_t kLost = 4000000;        // what may be lost before a thread is curt
constexpr int64_t kOnce = 3000000;        // what one wait counts at most: a process may have been stopped for minutes
constexpr int64_t kForgiven = 4;          // of the time that passes, one part in so many is forgiven
constexpr int64_t kShortest = 20000000, kLongest = 500000000;  // how long it is curt; each time twice as long

// How a thread waits: patiently, or curtly for a while after it has lost much of its time.
struct Patience {
  int64_t lost = 0;
  int64_t looked = 0;  // when `lost` was brought up to date
  int64_t until = 0;   // it is curt; 0 while it is not
  int64_t ended = 0;   // when it was last
  int64_t period = kShortest;

  bool curt() {
    if (until == 0) return false;
    const int64_t now = now_ns();
    if (now < until) return true;
    until = 0, ended = looked = now, lost = 0;
    return false;
  }
  void lose(int64_t now, int64_t time) {
    const int64_t forgiven = (now - looked) / kForgiven;
    lost = (lost > forgiven ? lost - forgiven : 0) + (time < kOnce ? time : kOnce);
    looked = now;
    if (lost < kLost) return;
    if (now - ended > 2 * kLongest) period = kShortest;
    until = now + period, lost = 0;  // what this wait still takes must not count as the next time
    period = period < kLongest ? 2 * period : kLongest;
  }
};

thread_local Patience patience;

// A number that is waited for: spinning first, then asleep.
struct alignas(64) Gate {
  std::atomic<uint32_t> value{0};
  std::atomic<uint32_t> sleepers{0};

  void open(uint32_t next) {
    value.store(next, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) != 0) {
      syscall(SYS_futex, reinterpret_cast<uint32_t *>(&value), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
    }
  }

  // Returns once the value is no longer `seen`. soon: it changes in less than `spin_ns` unless something is in the way.
  void wait(uint32_t seen, int64_t spin_ns, bool soon) {
    if (value.load(std::memory_order_acquire) != seen) return;
    const bool curt = patience.curt();
    int64_t counted = 0;  // until when the wait was looked at
    if (spin(seen, curt && spin_ns > kCurtSpin ? kCurtSpin : spin_ns, soon && !curt, &counted)) return;
    sleepers.fetch_add(1, std::memory_order_seq_cst);
    while (value.load(std::memory_order_seq_cst) == seen) {
      syscall(SYS_futex, reinterpret_cast<uint32_t *>(&value), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    }
    sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (!soon || curt) return;
    const int64_t now = now_ns();
    patience.lose(now, now - counted);
  }

  // Whether the value changed in that time. What was lost until `counted` has been told to the thread's patience.
  bool spin(uint32_t seen, int64_t spin_ns, bool soon, int64_t *counted) {
    if (spin_ns <= 0) return false;
    int64_t begun = 0, looked = 0;
    for (int32_t turn = 1;; turn++) {
      if (value.load(std::memory_order_acquire) != seen) return true;
      relax();
      if (turn % kLooks != 0) continue;
      const int64_t now = now_ns();
      if (begun == 0) begun = looked = *counted = now;
      if (soon && now - looked > kStolen) {
        patience.lose(now, now - *counted);
        *counted = now;
      }
      if (now - begun >= spin_ns || (soon && patience.until != 0)) return value.load(std::memory_order_acquire) != seen;
      looked = now;
    }
  }
};

}  // namespace

struct tg_pool {
  int32_t workers = 1;
  int64_t spin_ns = 0;
  bool pinned = false;
  bool caller_pinned = false;
  int32_t *cpus = nullptr;
  pthread_t *threads = nullptr;
  int32_t started = 0;

  Gate work;                                  // rises with each run
  Gate meeting;                               // rises with each barrier that all have reached
  alignas(64) std::atomic<uint32_t> met{0};  // workers at the barrier
  std::atomic<int64_t> taken{0};             // since then, by whoever asked
  alignas(64) tg::Task task = nullptr;
  void *argument = nullptr;
  bool ending = false;
};

namespace {

struct Start {
  tg_pool *pool;
  int32_t worker;
};

void pin(int32_t cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // where it is not allowed, the thread stays free
}

void *worker_main(void *argument) {
  const Start start = *static_cast<Start *>(argument);
  free(argument);
  tg_pool *pool = start.pool;
  if (pool->pinned) pin(pool->cpus[start.worker]);
  for (uint32_t seen = 0;;) {
    pool->work.wait(seen, pool->spin_ns, false);
    seen = pool->work.value.load(std::memory_order_acquire);
    if (pool->ending) return nullptr;
    pool->task(pool->argument, start.worker);
    tg::pool_barrier(pool);
  }
}

thread_local char error_sentence[256] = "";

}  // namespace

namespace tg {

void set_error(const char *sentence) {
  size_t i = 0;
  for (; sentence[i] != 0 && i + 1 < sizeof error_sentence; i++) error_sentence[i] = sentence[i];
  error_sentence[i] = 0;
}

const char *get_error() { return error_sentence; }

tg_pool *pool_create(int32_t workers, int64_t spin_us, const int32_t *cpus) {
  if (workers < 1 || workers > 1024) return set_error("a pool has 1 to 1024 workers"), nullptr;
  if (spin_us < 0 || spin_us > 60000000) return set_error("workers spin for 0 to 60 seconds"), nullptr;
  for (int32_t i = 0; cpus != nullptr && i < workers; i++) {
    if (cpus[i] < 0 || cpus[i] >= CPU_SETSIZE) return set_error("a worker is pinned to a processor that cannot be"), nullptr;
  }
  void *memory = nullptr;
  if (posix_memalign(&memory, 64, sizeof(tg_pool)) != 0) return set_error("no memory for a thread pool"), nullptr;
  tg_pool *pool = new (memory) tg_pool;
  pool->workers = workers;
  pool->spin_ns = spin_us * 1000;
  pool->pinned = cpus != nullptr;
  pool->cpus = static_cast<int32_t *>(calloc(workers, sizeof(int32_t)));
  pool->threads = static_cast<pthread_t *>(calloc(workers, sizeof(pthread_t)));
  bool good = pool->cpus != nullptr && pool->threads != nullptr;
  for (int32_t i = 0; good && cpus != nullptr && i < workers; i++) pool->cpus[i] = cpus[i];
  for (int32_t i = 1; good && i < workers; i++) {
    Start *start = static_cast<Start *>(malloc(sizeof(Start)));
    good = start != nullptr;
    if (!good) break;
    *start = {pool, i};
    good = pthread_create(&pool->threads[i], nullptr, worker_main, start) == 0;
    if (good) {
      pool->started++;
    } else {
      free(start);
    }
  }
  if (!good) {
    pool_destroy(pool);
    return set_error("the threads of a pool could not be started"), nullptr;
  }
  return pool;
}

void pool_destroy(tg_pool *pool) {
  if (pool == nullptr) return;
  pool->ending = true;
  pool->work.open(pool->work.value.load() + 1);
  for (int32_t i = 1; i <= pool->started; i++) pthread_join(pool->threads[i], nullptr);
  free(pool->threads);
  free(pool->cpus);
  free(pool);
}

int32_t pool_workers(const tg_pool *pool) { return pool->workers; }

void pool_barrier(tg_pool *pool) {
  if (pool->workers == 1) return;
  const uint32_t seen = pool->meeting.value.load(std::memory_order_acquire);
  if (pool->met.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(pool->workers)) {
    pool->met.store(0, std::memory_order_relaxed);
    pool->taken.store(0, std::memory_order_relaxed);
    pool->meeting.open(seen + 1);
  } else {
    pool->meeting.wait(seen, kBarrierSpin, true);
  }
}

int64_t pool_take(tg_pool *pool) { return pool->taken.fetch_add(1, std::memory_order_relaxed); }

void pool_run(tg_pool *pool, Task task, void *argument) {
  if (pool->pinned && !pool->caller_pinned) {
    pin(pool->cpus[0]);
    pool->caller_pinned = true;
  }
  pool->task = task;
  pool->argument = argument;
  if (pool->workers > 1) pool->work.open(pool->work.value.load(std::memory_order_relaxed) + 1);
  task(argument, 0);
  pool_barrier(pool);
}

}  // namespace tg
