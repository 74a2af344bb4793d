// What the kernels of every instruction set share: a run, the table of kernels, the packed weight.
//
// Files in kernels/ are compiled once for each instruction set, with other flags each time. So that the linker never takes one
// set's code for another's, everything they define lives in `namespace tg::TG_ISA`, or is TG_INLINE; templates and inline
// functions of the C++ library are not used there (std::min would be one).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "textgen_cpu.h"

#define TG_INLINE inline __attribute__((always_inline))

struct tg_weight {
  int32_t format;
  int64_t outs, ins, group;
  int64_t panels;       // of 16 outputs
  int64_t padded;       // ins, rounded up to what a tile takes
  int64_t groups;       // padded / group, 0 without groups
  int64_t record;       // bytes of 256 inputs of a panel, of formats in blocks
  int64_t value_bytes;  // of a panel's values; its groups' scales are behind them, then their zero points
  int64_t panel_bytes;  // of all of these
  uint8_t *values;      // see weight.cpp for the layouts
  float *scales;        // int8: [panels * 16]
  int64_t bytes;        // of the packed form
  bool owned;           // the memory is the library's
};

namespace tg {

constexpr int64_t kPanel = 16;  // outputs that lie side by side in a packed weight

// A panel of TG_WEIGHT_BF16_COMPACT begins with this, and room for a spill of one in 256 of its numbers. Its values follow in
// records of eight inputs: the lower bytes of the first four in a line of 64, [output / 4][pair of inputs][output % 4][2], those of
// the other four in a line like it, and a line of codes, in lower halves of the first's numbers, in upper ones of the second's.
struct Spill {
  uint32_t place;             // input * 16 + output
  uint16_t number, stand_in;  // what is there, and what its code gives
};
struct Compact {
  uint8_t high[16];  // upper byte of a number, by its code
  uint32_t count;    // of spills, by rising place
  uint32_t reserved[11];
  Spill spills[];
};
constexpr int64_t kCompactInputs = 8, kCompactRecord = 192;

TG_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
TG_INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
TG_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
TG_INLINE int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

TG_INLINE int64_t compact_spills(int64_t padded) { return padded * kPanel / 256; }
// A number of a panel, or what stands in for it.
TG_INLINE uint16_t compact_number(const Compact *head, const uint8_t *values, int64_t input, int64_t lane) {
  const uint8_t *record = values + input / kCompactInputs * kCompactRecord;
  const int64_t half = input / 4 % 2, at = lane / 4 * 16 + input / 2 % 2 * 8 + lane % 4 * 2 + input % 2;
  const int code = record[128 + at] >> half * 4 & 15;
  return static_cast<uint16_t>(head->high[code] << 8 | record[half * 64 + at]);
}

// A worker's part of `count` equal things: contiguous, the parts differ by one at most.
struct Share {
  int64_t begin, end;
};
TG_INLINE Share share_of(int64_t count, int64_t worker, int64_t workers) {
  return {count * worker / workers, count * (worker + 1) / workers};
}

void pool_barrier(tg_pool *pool);  // pool.cpp
int64_t pool_take(tg_pool *pool);
bool slow_pairs();  // of bfloat16, to multiply: slower than float32 (dispatch.cpp)
bool reads_on();  // by itself, what lies between lines that are asked for (dispatch.cpp)
bool reads_many();  // at once, and so reaches the memory's bandwidth; where not, two streams of reads are faster (dispatch.cpp)

// What a kernel sees while a step runs. Every worker has its own, all call each kernel, and each takes its share of the work.
struct Run {
  const tg_step *step;
  const tg_buffer *buffers;  // their addresses are resolved
  char *shared;              // scratch that all workers see; as large as the kernel's `scratch` asked, or larger
  char *scratch;             // this worker's own; both aligned to 64 bytes, and what they hold at first means nothing
  tg_pool *pool;
  int32_t worker, workers;

  // Rows of a buffer that are in use.
  TG_INLINE int64_t rows(int64_t buffer) const {
    return buffers[buffer].extent == TG_OUTPUTS ? step->outputs : step->tokens;
  }
  TG_INLINE const tg_buffer &buffer(int64_t index) const { return buffers[index]; }
  // A row of a buffer; T is what its dtype says.
  template <typename T>
  TG_INLINE T *row(int64_t buffer, int64_t row) const {
    return static_cast<T *>(buffers[buffer].address) + row * buffers[buffer].stride;
  }
  TG_INLINE Share share(int64_t count) const { return share_of(count, worker, workers); }
  // Waits until every worker is here. A barrier stands between two operations anyway.
  TG_INLINE void barrier() const { pool_barrier(pool); }
  // 0, 1, ... to whoever asks, from the last barrier on: for work that goes to the worker who has none left.
  TG_INLINE int64_t take() const { return pool_take(pool); }
};

// What is known of a plan's steps before they come.
struct Shape {
  const tg_buffer *buffers;
  int64_t buffer_count;
  int64_t max_tokens, max_outputs, max_segments, max_context;
  int32_t workers;

  TG_INLINE int64_t max_rows(int64_t buffer) const {
    return buffers[buffer].extent == TG_OUTPUTS ? max_outputs : max_tokens;
  }
  TG_INLINE bool is_buffer(int64_t index) const { return index >= 0 && index < buffer_count; }
  TG_INLINE bool is_float(int64_t index) const {
    return is_buffer(index) && (buffers[index].dtype == TG_F32 || buffers[index].dtype == TG_BF16);
  }
};

// Bytes that a kernel needs while it runs.
struct Scratch {
  int64_t shared;
  int64_t worker;  // for each
};

struct Kernel {
  void (*run)(const tg_op &op, const Run &run);
  // Why the operation cannot be run on such steps, as a sentence; null when it can. Asked once, when the plan is made.
  const char *(*check)(const tg_op &op, const Shape &shape);
  // Null: it needs none.
  Scratch (*scratch)(const tg_op &op, const Shape &shape);
  // Asks for what this worker will read first, before it waits for others to end the operation before. Null: for nothing.
  void (*ahead)(const tg_op &op, const Run &run) = nullptr;
};

// The kernels of one instruction set.
using KernelTable = const Kernel *(*)(int32_t kind);

}  // namespace tg

#ifdef TG_ISA
namespace tg::TG_ISA {

const Kernel *kernel_of(int32_t kind);  // table.cpp; null for a kind that there is no kernel for

extern const Kernel linear;                                            // linear.cpp
extern const Kernel embed, gather_rows, norm, add_rows, move, pick;   // rows.cpp
extern const Kernel activate, activate_gated, clamp, scale, toggle;   // elementwise.cpp
extern const Kernel route;                                            // route.cpp
extern const Kernel experts;                                          // experts.cpp
extern const Kernel rope_table, rope_write;                           // rope.cpp
extern const Kernel attention;                                        // attention.cpp
extern const Kernel argmax;                                           // sampling.cpp
extern const Kernel draw;                                             // draw.cpp

}  // namespace tg::TG_ISA
#endif
