// The C interface of Textgen's CPU kernels: a thread pool, packed weights, and plans, which are lists of operations that run in
// one call. Python binds it by `ctypes` from the address of a `tg_api`; nothing here knows Python or torch.
//
// Whoever calls owns all memory but packed weights and a plan's scratch. Sizes and strides count elements unless they say bytes.
// A function that can fail returns NULL or a negative number, and `tg_api.error` then has a sentence that says why.
#ifndef TEXTGEN_CPU_H
#define TEXTGEN_CPU_H

#include <stdint.h>

#include "textgen_cpu_kinds.h"

#ifdef __cplusplus
extern "C" {
#endif

// Rises with every change that a binding must know of.
#define TG_ABI 8

typedef enum tg_dtype { TG_F32 = 0, TG_BF16 = 1, TG_F16 = 2, TG_I8 = 3, TG_U8 = 4, TG_I32 = 5, TG_I64 = 6 } tg_dtype;

// --- threads

typedef struct tg_pool tg_pool;

// --- weights

// How a matrix [outs, ins] is kept. K = ins.
typedef enum tg_format {
  TG_WEIGHT_F32 = 0,   // x and the sum in float32
  TG_WEIGHT_BF16 = 1,  // x in bfloat16 (float32 is rounded to it), the sum in float32
  // One scale for each output; x quantized for each row: scale = max|x| / 127, q = round_half_even(x * (127 / max|x|)).
  // y = (q . w) * (scale_x * scale_w[out]); the dot product is exact.
  TG_WEIGHT_INT8 = 2,
  // One float16 scale for each output and group of `group` inputs (32, 64 or 128; ins is a multiple of it); x quantized
  // likewise for each row and group. y = sum over groups of (q . w) * (scale_x[g] * scale_w[out][g]), in float32.
  TG_WEIGHT_INT8_GROUPS = 3,
  // As the one before, with values from -8 to 7.
  TG_WEIGHT_INT4_GROUPS = 4,
  TG_WEIGHT_F16 = 5,  // x and the sum in float32
  // Rows of a GGUF file's blocks of 256 inputs, as they are. x quantized for each row and group of 32 inputs, of Q6_K 16.
  // y = sum over groups of scale_x[g] * (scale_w[g] * (q . w) - min_w[g] * sum(q)), in float32; Q6_K has no minima.
  TG_WEIGHT_Q4_K = 6,
  TG_WEIGHT_Q5_K = 7,
  TG_WEIGHT_Q6_K = 8,
  // As TG_WEIGHT_INT4_GROUPS with values from 0 to 15 and a zero point, a whole number from 0 to 16, for each output and group:
  // y = sum over groups of (q . (w - zero)) * (scale_x[g] * scale_w[out][g]).
  TG_WEIGHT_INT4_ZEROS = 9,
  // As TG_WEIGHT_INT4_GROUPS, in groups of 32, with numbers of four bits (E2M1: sign, two bits of exponent, one of fraction) and
  // scales that are powers of two (E8M0, a byte b for 2^(b - 127)), of which 2^-127 counts as 0. OCP's Microscaling Formats 1.0.
  TG_WEIGHT_MXFP4 = 10,
  // TG_WEIGHT_BF16 in 12 bits a number, each of which comes out as it went in.
  TG_WEIGHT_BF16_COMPACT = 11,
} tg_format;

typedef struct tg_weight tg_weight;

// Rows of a matrix that the caller owns, and that `weight_pack` copies.
typedef struct tg_rows {
  const void *values;    // [rows, ins]: TG_F32, TG_BF16 or TG_F16 for the float formats, TG_I8 for integers; blocks: TG_U8.
                         // Floats for TG_WEIGHT_INT8 and TG_WEIGHT_INT4_GROUPS become integers, each row's by itself
  const float *scales;   // int8: [rows]; groups: [rows, ins / group], rounded to float16, with zero points [rows, 2 * ins / group],
                         // those behind the scales; MXFP4: the scales' bytes, as numbers; floats, whatever they become, and
                         // blocks: NULL
  int64_t stride;        // from row to row of `values`, in elements
  int64_t scale_stride;  // from row to row of `scales`, in elements
  int64_t rows;
  int32_t dtype;  // of `values`
  int32_t reserved;
} tg_rows;

// --- plans

// How many rows of a buffer are in use in a step.
typedef enum tg_extent {
  TG_TOKENS = 0,   // step.tokens
  TG_OUTPUTS = 1,  // step.outputs: those of tokens that are asked for behind the last layer
} tg_extent;

// A matrix [rows, width] of activations, row after row, or a view of columns of one.
typedef struct tg_buffer {
  void *address;   // where it lies; NULL: at `offset` of the plan's arena
  int64_t offset;  // bytes; of a view: those of its first column
  int64_t width;   // elements of a row that belong to it
  int64_t stride;  // elements from row to row, at least `width`
  int32_t dtype;   // tg_dtype
  int32_t extent;  // tg_extent
} tg_buffer;

// Layers whose keys and values lie in the same pages: one block table for each segment.
typedef struct tg_group {
  const int64_t *rows;    // [tokens] where each token's key and value go: page * block_size + offset
  const int32_t *tables;  // [segments, table_stride] pages of each segment
  int64_t table_stride;
  int64_t block_size;
} tg_group;

typedef struct tg_step {
  int64_t tokens;           // in all segments, at most the plan's max_tokens
  int64_t outputs;          // tokens that are asked for, at most the plan's max_outputs
  int64_t segments;         // at most tokens
  int64_t groups;           // length of `group`
  const int64_t *ids;       // [tokens]
  const int64_t *positions; // [tokens]
  const int64_t *offsets;   // [segments] index of the segment's first token
  const int64_t *starts;    // [segments] position of that token
  const int64_t *lengths;   // [segments]
  const int64_t *sampled;   // [outputs] index of each of them, segment after segment
  const int64_t *tails;     // [segments] how many of the segment's last tokens they are; their sum is `outputs`
  const tg_group *group;    // [groups]
} tg_step;

// What an operation does. What is not named is 0. "buffer" is an index into the plan's buffers, "pointer" an address that
// outlives the plan; an optional buffer that is not there is -1, an optional pointer 0.
typedef enum tg_kind {
  // textgen_cpu_kinds.h states their numbers and flags.
  TG_LINEAR = 0,
  TG_EMBED = 1,
  TG_NORM = 2,
  TG_ADD_ROWS = 3,
  TG_ROPE_WRITE = 4,
  TG_ATTENTION = 5,
  TG_ACTIVATE = 6,
  TG_ACTIVATE_GATED = 7,
  TG_CLAMP = 8,
  TG_SCALE = 9,
  TG_GATHER_ROWS = 10,
  TG_EXPERTS = 11,
  TG_ROPE_TABLE = 12,
  TG_ARGMAX = 13,
  TG_MOVE = 14,
  TG_ROUTE = 15,
  TG_SWITCH = 16,
  TG_PICK = 17,
  TG_DRAW = 18,
  TG_KINDS = 32,  // numbers below it may be given to new kinds
} tg_kind;

enum { TG_ADD = 1 };  // a flag: y += ...

enum { TG_ARGS = 24, TG_NUMBERS = 8 };

typedef struct tg_op {
  int32_t kind;  // tg_kind
  int32_t flags;
  int64_t args[TG_ARGS];
  double numbers[TG_NUMBERS];
} tg_op;

typedef struct tg_plan tg_plan;

typedef struct tg_plan_options {
  const tg_op *ops;
  const tg_buffer *buffers;
  void *arena;  // 64-byte aligned
  int64_t op_count;
  int64_t buffer_count;
  int64_t arena_bytes;
  int64_t max_tokens;
  int64_t max_outputs;
  int64_t max_segments;
  int64_t max_context;  // tokens of a sequence
} tg_plan_options;

// A batch of one token for each sequence that goes on by a token with each run: layers, then the head for all tokens.
typedef struct tg_following {
  tg_plan *layers, *head;    // of one pool
  tg_plan *drawing;          // of it too: the TG_DRAW of the head's tokens, or NULL
  tg_draw *draws;            // [step.tokens] its rows, whose positions rise, and histories grow, too
  const tg_step *step;       // of the layers
  const tg_step *rows;       // of the head
  const void *from;          // where the layers end ...
  void *to;                  // ... and the head begins: copied in between
  int64_t bytes;
  int64_t *const *moving;    // [moving_count] columns [step.tokens] of the step that are one more in the next
  int64_t moving_count;
  const int64_t *slots;      // [step.tokens] which sequences they are
  int64_t *last;             // by slot, the token that was found last
  int64_t *ids;              // [step.tokens] the step's, which become those
  int32_t *table;            // of the step's first group, which a block that begins is written into,
  int64_t *places;           // and its `rows`
  const int64_t *found;      // [step.tokens] the tokens that the head finds,
  const float *logprobs;     // and their log-probabilities
} tg_following;

// --- the table

typedef struct tg_api {
  uint32_t abi;     // TG_ABI
  uint32_t size;    // bytes of this struct
  const char *isa;  // "portable", "avx2", "avx512vnni", "avx512", "amx" or "neon"

  // The sentence of the last failure on this thread; "" when there was none.
  const char *(*error)(void);

  // `workers` threads, of which the caller of plan_run is the first. They spin for `spin_us` microseconds after their last work
  // and then sleep. cpus: [workers] the processor that each is pinned to (the caller too, at its first run), or NULL.
  tg_pool *(*pool_create)(int32_t workers, int64_t spin_us, const int32_t *cpus);
  void (*pool_destroy)(tg_pool *pool);

  // A weight with room for [outs, ins]. `group`: inputs to a scale, 0 for formats without groups. Rows that were never packed
  // are zero. The memory is the library's.
  tg_weight *(*weight_create)(int32_t format, int64_t outs, int64_t ins, int64_t group);
  // Packs `rows` as outputs first_out and after. Calls for rows that share no panel of 16 outputs may run at once. 0, or 1 where
  // numbers are too far apart for TG_WEIGHT_BF16_COMPACT: `weight_widen`, and all rows anew.
  int32_t (*weight_pack)(tg_weight *weight, int64_t first_out, const tg_rows *rows);
  int64_t (*weight_bytes)(const tg_weight *weight);
  void (*weight_destroy)(tg_weight *weight);

  // Copies ops and buffers; the arena, and what the ops point to, must outlive the plan. One run of a pool at a time.
  tg_plan *(*plan_create)(tg_pool *pool, const tg_plan_options *options);
  // Runs every operation. No allocation; no system call while the workers spin. A step that is out of the plan's bounds is
  // refused before anything is written.
  int32_t (*plan_run)(tg_plan *plan, const tg_step *step);
  // Runs both plans without letting the workers go in between, from the last tokens on; then the columns move. begun:
  // [begun_count, 2] sequences whose token is the first of a block, and its page. With `keep` what was found becomes the last token
  // of each. 0, or 1 where a log-probability is not finite, and no token is kept then.
  int32_t (*plan_follow)(const tg_following *following, const int32_t *begun, int64_t begun_count, int32_t keep);
  // Nanoseconds that worker 0 spent in each operation of the last runs, [op_count]; NULL turns it off again.
  void (*plan_profile)(tg_plan *plan, int64_t *nanoseconds);
  void (*plan_destroy)(tg_plan *plan);

  // Where the packed form lies, `weight_bytes` of it; the same bytes for every instruction set.
  const void *(*weight_memory)(const tg_weight *weight);
  // A weight whose packed form the caller has, as `weight_memory` gave it: aligned to 64 bytes, not written, and there as long as the
  // weight. NULL where `bytes` is not what such a weight has.
  tg_weight *(*weight_map)(int32_t format, int64_t outs, int64_t ins, int64_t group, const void *memory, int64_t bytes);
  // A weight of TG_WEIGHT_BF16_COMPACT becomes one of TG_WEIGHT_BF16, at the same address and without any rows. Plans that were made
  // before may run it.
  int32_t (*weight_widen)(tg_weight *weight);
} tg_api;

// The kernels for `isa`, or for the best that this machine has where it is NULL; NULL when the machine or the build lacks it.
const tg_api *tg_cpu_api(const char *isa);
// The names that tg_cpu_api takes here, best first, as one string with commas.
const char *tg_cpu_isas(void);
// Makes about so many bytes of memory in the background, for weights that will be created; 0 gives back what they did not take.
void tg_cpu_reserve(int64_t bytes);
// Zeros, out of the reserve if it has so many bytes left, at a multiple of 64; NULL where there is no memory. `tg_cpu_leave` gives
// them back.
void *tg_cpu_room(int64_t bytes);
void tg_cpu_leave(void *room, int64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
