// What the kinds of operations take: the positions of their numbers in tg_op.args and tg_op.numbers, and their
// flags. A buffer is an index into the plan's buffers, and any may be a view; an address outlives the plan. A
// norm's weight and a buffer are TG_F32 or TG_BF16, tables and caches TG_F16 too. Inside a kernel everything is float32, and it rounds once where it writes.
//
// A cache of TG_I8 has a scale for each row and head, [rows, kv_heads] float32: scale = max|x| / 127 of a head's numbers, q =
// round_half_even(x * (127 / max|x|)); a head with a number that is not finite has a scale that is none. What is read of it is q * scale,
// rounded to bfloat16 where products of two bfloat16 follow; with few queries scores and weights meet the scales instead.
// Included by textgen_cpu.h.
#ifndef TEXTGEN_CPU_KINDS_H
#define TEXTGEN_CPU_KINDS_H

// y = x W^T (+ bias), with TG_ADD y += it; the sum is rounded once to the dtype of y. Rows of x may go through a norm or an activation
// first, whose numbers are rounded to the dtype of x, as if it had been an operation of its own; y is not x then.
enum tg_linear {
  TG_LINEAR_WEIGHT = 0,  // address: tg_weight
  TG_LINEAR_BIAS = 1,    // address: [outs] float32; 0: none
  TG_LINEAR_X = 2,       // buffer [rows, ins], or [rows, 2 * ins] with TG_BEFORE_GATED
  TG_LINEAR_Y = 3,       // buffer [rows, outs]
  TG_LINEAR_BEFORE = 4,  // tg_before
  TG_LINEAR_NORM_WEIGHT = 5,  // of TG_BEFORE_NORM, as in tg_norm, with its flag
  TG_LINEAR_NORM_WEIGHT_DTYPE = 6,
  TG_LINEAR_NORM_BIAS = 7,
  TG_LINEAR_NORM_BIAS_DTYPE = 8,
  TG_LINEAR_ACTIVATION = 9,  // tg_activation, of the other two
  TG_LINEAR_EPS = 0,         // numbers, of TG_BEFORE_NORM
  TG_LINEAR_LIMIT = 1,       // of TG_CLAMPED_SILU
  TG_LINEAR_ALPHA = 2,
};

typedef enum tg_before {
  TG_BEFORE_NOTHING = 0,
  TG_BEFORE_NORM = 1,        // of whole rows
  TG_BEFORE_ACTIVATION = 2,  // as TG_ACTIVATE
  TG_BEFORE_GATED = 3,       // as TG_ACTIVATE_GATED
} tg_before;

// y = factor * row of a table [rows, width of y]. The row is the token's id, or its position. An index that the table lacks
// takes the nearest row that it has.
enum tg_embed {
  TG_EMBED_TABLE = 0,  // address; with TG_EMBED_PACKED a tg_weight of floats or of TG_WEIGHT_INT8, whose rows are its outputs
  TG_EMBED_DTYPE = 1,  // of the table
  TG_EMBED_ROWS = 2,
  TG_EMBED_Y = 3,       // buffer
  TG_EMBED_OFFSET = 4,  // added to the index
  TG_EMBED_FACTOR = 0,  // numbers
  TG_EMBED_BY_POSITION = 2,  // flags, beside TG_ADD: y += ...
  TG_EMBED_PACKED = 4,
};

// y = x / rms(x) * weight, or with TG_LAYER_NORM (x - mean) / std * weight + bias. y may be x.
enum tg_norm {
  TG_NORM_X = 0,
  TG_NORM_Y = 1,
  TG_NORM_WEIGHT = 2,  // address; 0: none
  TG_NORM_WEIGHT_DTYPE = 3,
  TG_NORM_BIAS = 4,  // address; 0: none
  TG_NORM_BIAS_DTYPE = 5,
  TG_NORM_SIZE = 6,   // numbers that are normed together; 0: a row. The width of x is a multiple of it
  TG_NORM_UNITS = 7,  // rows of weight and bias: 1, which all share, or width / size
  TG_NORM_EPS = 0,    // numbers
  TG_LAYER_NORM = 2,  // flag
};

// x += factor * y; then, where there is a z, z = norm(x) over a row. z may be x.
enum tg_add_rows {
  TG_ADD_X = 0,
  TG_ADD_Y = 1,
  TG_ADD_Z = 2,       // buffer; -1: none
  TG_ADD_WEIGHT = 3,  // of the norm, as in tg_norm
  TG_ADD_WEIGHT_DTYPE = 4,
  TG_ADD_BIAS = 5,
  TG_ADD_BIAS_DTYPE = 6,
  TG_ADD_FACTOR = 0,  // numbers
  TG_ADD_EPS = 1,
};

// y [tokens, dim]: factor * cos of each token's angles in the first half, factor * sin in the second.
enum tg_rope_table {
  TG_TABLE_Y = 0,
  TG_TABLE_INVERSE = 1,  // address: [dim / 2] float32
  TG_TABLE_FACTOR = 0,   // numbers
};

// x [tokens, (heads + kv_heads) * head_dim + kv_heads * value_dim]: queries and keys are turned in place by a table of
// TG_ROPE_TABLE, and keys and values go to the cache. The table may be narrower than a head: it turns the
// numbers from `first` on, and the rest stays.
enum tg_rope_write {
  TG_ROPE_X = 0,
  TG_ROPE_HEADS = 1,
  TG_ROPE_KV_HEADS = 2,
  TG_ROPE_HEAD_DIM = 3,
  TG_ROPE_VALUE_DIM = 4,
  TG_ROPE_TABLE_BUFFER = 5,  // -1: nothing turns
  TG_ROPE_GROUP = 6,         // index into the step's groups
  TG_ROPE_KEYS = 7,          // address; 0: nothing is written
  TG_ROPE_VALUES = 8,        // address; 0: no values are written
  TG_ROPE_CACHE_DTYPE = 9,
  TG_ROPE_KEY_STRIDE = 10,  // elements from row to row of the cache
  TG_ROPE_VALUE_STRIDE = 11,
  TG_ROPE_FIRST = 12,
  TG_ROPE_KEY_SCALES = 13,  // addresses, of a cache of TG_I8
  TG_ROPE_VALUE_SCALES = 14,
};

// Attention of each token to its own sequence in the cache, up to itself. The score of a key is scale * query . key, then
// cap * tanh(score / cap), then + slope * (key - query position), then + bias[min(distance back, distances - 1)]. A sink takes
// its share of the softmax. heads / kv_heads query heads share one of the cache.
enum tg_attention {
  TG_ATTENTION_Q = 0,  // buffer [tokens, heads * head_dim]
  TG_ATTENTION_Y = 1,  // buffer [tokens or outputs, heads * value_dim]: of outputs only these tokens are worked on
  TG_ATTENTION_HEADS = 2,
  TG_ATTENTION_KV_HEADS = 3,
  TG_ATTENTION_HEAD_DIM = 4,
  TG_ATTENTION_VALUE_DIM = 5,
  TG_ATTENTION_GROUP = 6,
  TG_ATTENTION_KEYS = 7,    // address: head h of a row begins h * head_dim behind it
  TG_ATTENTION_VALUES = 8,  // address
  TG_ATTENTION_CACHE_DTYPE = 9,
  TG_ATTENTION_KEY_STRIDE = 10,  // elements from row to row of the cache
  TG_ATTENTION_VALUE_STRIDE = 11,
  TG_ATTENTION_WINDOW = 12,  // tokens that a token sees, itself included; 0: all
  TG_ATTENTION_SLOPES = 13,  // address: [heads] float32; 0: none
  TG_ATTENTION_SINKS = 14,   // address: [heads] float32; 0: none
  TG_ATTENTION_BIASES = 15,  // address: [heads, distances] float32; 0: none
  TG_ATTENTION_DISTANCES = 16,
  TG_ATTENTION_KEY_SCALES = 17,  // addresses, of a cache of TG_I8
  TG_ATTENTION_VALUE_SCALES = 18,
  TG_ATTENTION_SCALE = 0,  // numbers
  TG_ATTENTION_CAP = 1,    // numbers; 0: none
};

typedef enum tg_activation {
  TG_SILU = 0,
  TG_GELU = 1,
  TG_GELU_TANH = 2,
  TG_RELU = 3,
  TG_RELU2 = 4,         // its square
  TG_CLAMPED_SILU = 5,  // gated only: gate * sigmoid(alpha * gate) * (up + 1), gate <= limit, up within +- limit
} tg_activation;

// TG_ACTIVATE: y = activation(x), y may be x. TG_ACTIVATE_GATED: x is [rows, 2 * width of y], gates first;
// y = activation(gate) * up.
enum tg_activate {
  TG_ACTIVATE_X = 0,
  TG_ACTIVATE_Y = 1,
  TG_ACTIVATE_KIND = 2,   // tg_activation
  TG_ACTIVATE_LIMIT = 0,  // numbers, of TG_CLAMPED_SILU
  TG_ACTIVATE_ALPHA = 1,
};

// TG_CLAMP: x = x within [low, high]. TG_SCALE: x = factor * x, then cap * tanh(x / cap) where there is a cap.
enum tg_change {
  TG_CHANGE_X = 0,
  TG_CLAMP_LOW = 0,  // numbers
  TG_CLAMP_HIGH = 1,
  TG_SCALE_FACTOR = 0,
  TG_SCALE_CAP = 1,  // 0: none
};

// Columns of x go to y, in `units` runs of `width` columns each, which lie a step apart.
enum tg_move {
  TG_MOVE_X = 0,
  TG_MOVE_Y = 1,
  TG_MOVE_UNITS = 2,
  TG_MOVE_WIDTH = 3,
  TG_MOVE_X_STEP = 4,  // columns from one run to the next
  TG_MOVE_Y_STEP = 5,
};

// Column i of y is column order[i] of x.
enum tg_pick {
  TG_PICK_X = 0,
  TG_PICK_Y = 1,      // buffer, not x
  TG_PICK_ORDER = 2,  // address: [width of y] int32
};

// x = sigmoid(s) * x; s [rows, 1].
enum tg_switch { TG_SWITCH_X = 0, TG_SWITCH_S = 1 };

// Of each token's scores the experts that are chosen, and the shares of what they give. Scores become probabilities: softmax
// over all, over the chosen ones alone, or a sigmoid each. The correction is added for the choice alone. With groups, only
// experts of the groups whose best expert (or best two together) are best are chosen. Shares are normalized on request and scaled.
enum tg_route {
  TG_ROUTE_X = 0,       // buffer [rows, experts] float32
  TG_ROUTE_CHOSEN = 1,  // buffer [rows, top] int32
  TG_ROUTE_SHARES = 2,  // buffer [rows, top] float32
  TG_ROUTE_CORRECTION = 3,  // address: [experts] float32; 0: none
  TG_ROUTE_SCORE = 4,       // tg_score
  TG_ROUTE_GROUPS = 5,
  TG_ROUTE_TOP_GROUPS = 6,
  TG_ROUTE_BEST = 7,      // experts that a group is judged by: 1 or 2
  TG_ROUTE_SCALE = 0,     // numbers
  TG_ROUTE_NORMALIZE = 1, // flag: shares sum up to 1, before they are scaled
};

typedef enum tg_score { TG_SCORE_SOFTMAX = 0, TG_SCORE_CHOSEN = 1, TG_SCORE_SIGMOID = 2 } tg_score;

// y = the sum over a token's experts of share * down(activation(up(x))), gated as TG_ACTIVATE_GATED. All experts have one shape.
enum tg_experts {
  TG_EXPERTS_X = 0,       // buffer [rows, ins]
  TG_EXPERTS_Y = 1,       // buffer [rows, outs], not x
  TG_EXPERTS_CHOSEN = 2,  // buffers of TG_ROUTE
  TG_EXPERTS_SHARES = 3,
  TG_EXPERTS_COUNT = 4,
  TG_EXPERTS_UP = 5,         // address: [count] tg_weight pointers, each [2 * neurons, ins], gates first
  TG_EXPERTS_DOWN = 6,       // address: [count] tg_weight pointers, each [outs, neurons]
  TG_EXPERTS_UP_BIAS = 7,    // address: [count, 2 * neurons] float32; 0: none
  TG_EXPERTS_DOWN_BIAS = 8,  // address: [count, outs] float32; 0: none
  TG_EXPERTS_KIND = 9,       // tg_activation
  TG_EXPERTS_LIMIT = 0,      // numbers, of TG_CLAMPED_SILU
  TG_EXPERTS_ALPHA = 1,
};

// TG_GATHER_ROWS: y[i] = x[step.sampled[i]]; x has a row for each token, y one for each output.
enum tg_gather { TG_GATHER_X = 0, TG_GATHER_Y = 1 };

// The first of the largest numbers of each row, the log of the sum of exp of a row, and what is between the two. With masks: of
// those numbers whose bit is set, -1 where that leaves none above minus infinity; rows without a mask stay as they are, and the
// normaliser, of all numbers, is read.
enum tg_argmax {
  TG_ARGMAX_X = 0,
  TG_ARGMAX_TOKENS = 1,      // address: [rows] int64
  TG_ARGMAX_NORMALISER = 2,  // address: [rows] float32; 0: not wanted, nor then the next
  TG_ARGMAX_MASKS = 3,       // address: [rows] addresses of bits, whole 4 bytes of them, the lowest first; 0: of all numbers
  TG_ARGMAX_LOGPROBS = 4,    // address: [rows] float32, of the tokens; 0: not wanted
};

// How a token is drawn from a row. With a history, tokens in it are penalised first: a logit x is x / repetition, or x * repetition
// where it is below 0, then less frequency times how often the output has the token, and presence where it has it at all.
typedef struct tg_draw {
  const float *logits;  // [vocab] that it is drawn from, minus infinity where it may not be; NULL: the row of x
  int32_t *history;     // [position] tokens before this one, of which the first `prompt` are no output; NULL: no penalties
  const char *mask;     // bits of the tokens that may be drawn, whole 4 bytes of them, the lowest first; NULL: all
  uint64_t seed;
  int64_t position, prompt;
  int64_t window;  // how many of the last tokens are looked at; 0: all
  float factor;    // 1 / temperature, finite; 0: the likeliest is taken
  float top_p;     // 1: off
  float min_p;     // 0: off
  float repetition, frequency, presence;
  int32_t top_k;  // 0: off
} tg_draw;

// Behind TG_ARGMAX: penalizes, and draws other tokens than the likeliest. Log-probabilities are those of x.
enum tg_drawn {
  TG_DRAW_X = 0,           // buffer [rows, vocab] float32
  TG_DRAW_ROWS = 1,        // address: [rows] tg_draw
  TG_DRAW_TOKENS = 2,      // address: [rows] int64, the likeliest token of each row of x; those that are drawn instead
  TG_DRAW_NORMALISER = 3,  // address: [rows] float32
  TG_DRAW_LOGPROBS = 4,    // address: [rows] float32, of the tokens
};

#endif
