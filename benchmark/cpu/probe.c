// How fast this machine reads memory now: GB/s of all threads together, with one stream of reads a thread and with eight.
//   probe MEGABYTES THREADS ROUNDS
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

typedef uint64_t line __attribute__((vector_size(64)));

enum { MOST_THREADS = 1024, STREAMS = 8 };

static pthread_barrier_t meet;
static int64_t lines;  // of a thread
static int rounds;
static double best[2][MOST_THREADS];  // seconds of each thread in the fastest round

struct worker {
  pthread_t thread;
  int index, cpu;
  line *from;
  uint64_t sum;
};

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static line walk(const line *from, int streams) {
  const int64_t part = lines / streams;
  line sums[STREAMS];
  memset(sums, 0, sizeof sums);
  if (streams == 1) {
    for (int64_t i = 0; i + STREAMS <= part; i += STREAMS) {
      for (int s = 0; s < STREAMS; s++) sums[s] ^= from[i + s];
    }
  } else {
    for (int64_t i = 0; i < part; i++) {
      for (int s = 0; s < STREAMS; s++) sums[s] ^= from[s * part + i];
    }
  }
  for (int s = 1; s < STREAMS; s++) sums[0] ^= sums[s];
  return sums[0];
}

static void *run(void *argument) {
  struct worker *self = argument;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(self->cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
  memset(self->from, self->index + 1, lines * sizeof(line));
  for (int round = 0; round < 2 * rounds; round++) {
    pthread_barrier_wait(&meet);
    const double begun = now();
    const line sum = walk(self->from, round % 2 == 0 ? 1 : STREAMS);
    const double taken = now() - begun;
    self->sum += sum[0];
    double *shortest = &best[round % 2][self->index];
    if (*shortest == 0 || taken < *shortest) *shortest = taken;
  }
  return NULL;
}

int main(int count, char **words) {
  if (count != 4) return fprintf(stderr, "probe MEGABYTES THREADS ROUNDS\n"), 2;
  const int64_t bytes = atoll(words[1]) << 20;
  const int threads = atoi(words[2]);
  rounds = atoi(words[3]);
  if (bytes < 1 || threads < 1 || threads > MOST_THREADS || rounds < 1) return fprintf(stderr, "probe: out of range\n"), 2;
  lines = bytes / threads / (int64_t)sizeof(line) / STREAMS * STREAMS;
  cpu_set_t allowed;
  sched_getaffinity(0, sizeof allowed, &allowed);
  static struct worker workers[MOST_THREADS];
  pthread_barrier_init(&meet, NULL, threads);
  int cpu = -1;
  for (int t = 0; t < threads; t++) {
    do cpu = (cpu + 1) % CPU_SETSIZE;
    while (!CPU_ISSET(cpu, &allowed));
    workers[t] = (struct worker){.index = t, .cpu = cpu};
    workers[t].from = aligned_alloc(2 << 20, (lines * sizeof(line) + (2 << 20) - 1) / (2 << 20) * (2 << 20));
    if (workers[t].from == NULL) return fprintf(stderr, "probe: no memory\n"), 1;
    madvise(workers[t].from, lines * sizeof(line), MADV_HUGEPAGE);
  }
  for (int t = 0; t < threads; t++) {
    if (pthread_create(&workers[t].thread, NULL, run, &workers[t]) != 0) return fprintf(stderr, "probe: no thread\n"), 1;
  }
  uint64_t sum = 0;
  double longest[2] = {0, 0};
  for (int t = 0; t < threads; t++) {
    pthread_join(workers[t].thread, NULL);
    sum += workers[t].sum;
    for (int i = 0; i < 2; i++) longest[i] = best[i][t] > longest[i] ? best[i][t] : longest[i];
  }
  const double read = (double)lines * sizeof(line) * threads * 1e-9;
  printf("%.2f %.2f\n", read / longest[0], read / longest[1]);
  return sum == 42;  // so that the sums are needed
}
