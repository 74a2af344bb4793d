// Draws a token from rows of logits: penalties, a mask, temperature, then top-k, top-p (arXiv 1904.09751) and min-p (arXiv 2407.01082) as
// filters one after the other, then the first token, by id, whose cumulative share exceeds a number made of seed and position.
// Nothing is sorted: a filter keeps what is not below some score, which is found from histograms. A row is drawn by one worker, so
// that its token depends on nothing but itself.
#include "likeliest.h"

namespace tg::TG_ISA {
namespace {

constexpr int64_t kSpan = 256;    // tokens whose shares are summed, or whose best is known, together
constexpr int64_t kStretch = 64;  // tokens that are looked at together for one that stays
constexpr int kLevels = 3;
constexpr int kBits[kLevels] = {11, 10, 10};  // of a key, from the top
constexpr int64_t kBuckets = 1 << 11;

// A score is how far a logit is below the row's largest; a share is exp(score / temperature).
struct Row {
  const float *logits;
  int64_t vocab;
  float top, factor, min_p;

  TG_INLINE Vec scores(int64_t i, int lanes) const {
    const Vec v = load_lanes(logits + i, lanes) - top;
    return lanes == kLanes || lane_index() < lanes ? v : splat(-__builtin_inff());
  }
  TG_INLINE Vec shares(Vec scores) const {
    const Vec v = exp(scores * factor);
    return v >= min_p ? v : Vec{};
  }
};

// Tokens that a filter has left, by id.
struct Candidates {
  float *scores, *shares;
  int32_t *ids;
  int64_t count;
};

struct Workspace {
  Candidates candidates;
  float *shaped;     // [vocab]
  double *spans;     // [vocab / kSpan]
  double *buckets;   // [kBuckets]

  static int64_t spans_of(int64_t vocab) { return ceil_div(vocab, kSpan); }
  static int64_t bytes(int64_t vocab) { return 4 * round_up(vocab, kStretch) * 4 + (spans_of(vocab) + kBuckets) * 8; }
  Workspace(char *at, int64_t vocab) {
    const int64_t each = round_up(vocab, kStretch);
    float *numbers = reinterpret_cast<float *>(at);
    candidates = {numbers, numbers + each, reinterpret_cast<int32_t *>(numbers + 2 * each), 0};
    shaped = numbers + 3 * each;
    spans = reinterpret_cast<double *>(at + 4 * each * 4);
    buckets = spans + spans_of(vocab);
  }
};

// SplitMix64 of both, its top 53 bits: in [0, 1).
double uniform(uint64_t seed, int64_t position) {
  uint64_t z = seed + (static_cast<uint64_t>(position) + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53;
}

// The lower a score the larger its key; scores are not above 0.
TG_INLINE uint32_t key_of(float score) { return cast<uint32_t>(score) & 0x7fffffff; }

// The largest key that a filter keeps: those before which less than `limit` lies, of shares, or of candidates.
uint32_t last_kept(const Candidates &from, double *buckets, bool by_share, double limit) {
  uint32_t prefix = 0;
  double before = 0;
  int shift = 31;
  for (int level = 0; level < kLevels; level++) {
    const int above = shift;
    shift -= kBits[level];
    const uint32_t mask = (1u << kBits[level]) - 1;
    memset(buckets, 0, sizeof(double) << kBits[level]);
    for (int64_t i = 0; i < from.count; i++) {
      const uint32_t key = key_of(from.scores[i]);
      if (key >> above == prefix) buckets[key >> shift & mask] += by_share ? from.shares[i] : 1.0;
    }
    uint32_t bucket = 0;
    while (bucket < mask && before + buckets[bucket] < limit) before += buckets[bucket++];
    prefix = prefix << kBits[level] | bucket;
  }
  return prefix;
}

// Those that stay, in place.
template <typename F>
void keep(Candidates &candidates, const F &stays) {
  int64_t kept = 0;
  for (int64_t i = 0; i < candidates.count; i++) {
    if (!stays(i)) continue;
    candidates.scores[kept] = candidates.scores[i];
    candidates.shares[kept] = candidates.shares[i];
    candidates.ids[kept++] = candidates.ids[i];
  }
  candidates.count = kept;
}

void keep_until(Candidates &candidates, uint32_t last) {
  keep(candidates, [&](int64_t i) { return key_of(candidates.scores[i]) <= last; });
}

// Tokens whose score is `lowest` or more.
void gather(const Row &row, float lowest, Candidates &to) {
  to.count = 0;
  for (int64_t at = 0; at < row.vocab; at += kStretch) {
    const int64_t end = least(at + kStretch, row.vocab);
    IVec any = {};
    by_vector(at, end, [&](int64_t i, int lanes) { any |= row.scores(i, lanes) >= lowest; });
    if (sum(any) == 0) continue;
    for (int64_t i = at; i < end; i++) {  // written in any case: no branch that cannot be foreseen
      const float score = row.logits[i] - row.top;
      to.scores[to.count] = score;
      to.ids[to.count] = static_cast<int32_t>(i);
      to.count += score >= lowest;
    }
  }
}

void fill_shares(const Row &row, Candidates &of) {
  by_vector(0, of.count, [&](int64_t i, int lanes) { store_lanes(of.shares + i, row.shares(load_lanes(of.scores + i, lanes)), lanes); });
}

double total_of(const Candidates &candidates) {
  double total = 0;
  for (int64_t i = 0; i < candidates.count; i++) total += candidates.shares[i];
  return total;
}

// Shares of each span, and of all.
double sum_spans(const Row &row, double *spans) {
  double total = 0;
  for (int64_t at = 0; at < row.vocab; at += kSpan) {
    Vec shares = {};
    by_vector(at, least(at + kSpan, row.vocab), [&](int64_t i, int lanes) { shares += row.shares(row.scores(i, lanes)); });
    total += spans[at / kSpan] = sum(shares);
  }
  return total;
}

// A score that at least k tokens reach: that of the span whose best is the k-th among those of all; none for more than there are.
float reached_by(const Row &row, int64_t k, const Workspace &space) {
  const int64_t spans = Workspace::spans_of(row.vocab);
  if (k > spans) return -__builtin_inff();
  Candidates bests = space.candidates;
  bests.count = spans;
  for (int64_t at = 0; at < row.vocab; at += kSpan) {
    Vec best = splat(-__builtin_inff());
    by_vector(at, least(at + kSpan, row.vocab), [&](int64_t i, int lanes) { best = max(row.scores(i, lanes), best); });
    bests.scores[at / kSpan] = largest(best);
  }
  return -cast<float>(last_kept(bests, space.buckets, false, static_cast<double>(k)));
}

// The first whose cumulative share exceeds `target`; the last that has one where rounding leaves none.
template <typename Share>
int64_t first_beyond(int64_t count, double target, const Share &share) {
  int64_t last = 0;
  double upto = 0;
  for (int64_t i = 0; i < count; i++) {
    const double own = share(i);
    if (own <= 0) continue;
    last = i;
    upto += own;
    if (upto > target) break;
  }
  return last;
}

int64_t draw_of_all(const Row &row, double u, const Workspace &space) {
  double target = u * sum_spans(row, space.spans);
  int64_t span = 0, last = 0;
  for (const int64_t spans = Workspace::spans_of(row.vocab); span < spans; span++) {
    if (space.spans[span] <= 0) continue;
    last = span;
    if (space.spans[span] > target) break;
    target -= space.spans[span];
  }
  const int64_t first = last * kSpan, count = least(kSpan, row.vocab - first);
  float shares[kSpan];
  by_vector(0, count, [&](int64_t i, int lanes) { store_lanes(shares + i, row.shares(row.scores(first + i, lanes)), lanes); });
  return first + first_beyond(count, target, [&](int64_t i) { return shares[i]; });
}

int64_t draw_of_candidates(const Candidates &candidates, double u) {
  const double target = u * total_of(candidates);
  return candidates.ids[first_beyond(candidates.count, target, [&](int64_t i) { return candidates.shares[i]; })];
}

int64_t draw_row(Row row, const tg_draw &draw, Workspace &space) {
  const double u = uniform(draw.seed, draw.position);
  const bool by_count = draw.top_k > 0 && draw.top_k < row.vocab, by_share = draw.top_p < 1;
  Candidates &candidates = space.candidates;
  row.min_p = 0;
  if (!by_count && !by_share) {
    row.min_p = draw.min_p;
    return draw_of_all(row, u, space);
  }
  double total = 0;
  if (by_count) {
    gather(row, reached_by(row, draw.top_k, space), candidates);
    keep_until(candidates, last_kept(candidates, space.buckets, false, draw.top_k));
    fill_shares(row, candidates);
    total = total_of(candidates);
  } else {
    // All tokens with a smaller share than this have less than 1 - p together: none of them is in the nucleus.
    total = sum_spans(row, space.spans);
    const double least_share = 0.99 * (1 - static_cast<double>(draw.top_p)) * total / row.vocab;
    gather(row, logf(static_cast<float>(least_share)) / row.factor, candidates);
    fill_shares(row, candidates);
  }
  if (by_share) keep_until(candidates, last_kept(candidates, space.buckets, true, draw.top_p * total));
  if (draw.min_p > 0) keep(candidates, [&](int64_t i) { return candidates.shares[i] >= draw.min_p; });
  return draw_of_candidates(candidates, u);
}

// Logits with penalties on them, in the workspace. Each token is penalised once, however often it is there.
const float *penalise(const float *logits, int64_t vocab, const tg_draw &draw, Workspace &space) {
  constexpr int32_t kDone = -1;
  const int64_t first = draw.window > 0 ? most(0, draw.position - draw.window) : 0;
  int32_t *counts = space.candidates.ids;
  memcpy(space.shaped, logits, vocab * sizeof(float));
  const auto each = [&](int64_t from, const auto &change) {
    for (int64_t i = most(first, from); i < draw.position; i++) {
      if (draw.history[i] >= 0 && draw.history[i] < vocab) change(draw.history[i]);
    }
  };
  each(0, [&](int32_t token) { counts[token] = 0; });
  each(draw.prompt, [&](int32_t token) { counts[token]++; });
  each(0, [&](int32_t token) {
    const int32_t count = counts[token];
    if (count == kDone) return;
    float &x = space.shaped[token];
    x = x < 0 ? x * draw.repetition : x / draw.repetition;
    x = x - static_cast<float>(count) * draw.frequency - (count > 0 ? draw.presence : 0.0f);
    counts[token] = kDone;
  });
  return space.shaped;
}

// Logits with minus infinity where a token may not be drawn, in the workspace too.
const float *restricted(const float *logits, int64_t vocab, const char *mask, Workspace &space) {
  by_vector(0, vocab, [&](int64_t i, int lanes) { store_lanes(space.shaped + i, load_allowed(logits, mask, i, lanes), lanes); });
  return space.shaped;
}

void draw_run(const tg_op &op, const Run &run) {
  const int64_t x = op.args[TG_DRAW_X], vocab = run.buffer(x).width;
  const tg_draw *draws = address<const tg_draw>(op.args[TG_DRAW_ROWS]);
  int64_t *tokens = address<int64_t>(op.args[TG_DRAW_TOKENS]);
  const float *normaliser = address<const float>(op.args[TG_DRAW_NORMALISER]);
  float *logprobs = address<float>(op.args[TG_DRAW_LOGPROBS]);
  Workspace space(run.scratch, vocab);
  const Share share = run.share(run.rows(x));
  for (int64_t at = share.begin; at < share.end; at++) {
    const tg_draw &draw = draws[at];
    const float *numbers = run.row<float>(x, at), *shaped = draw.logits;
    if (draw.history != nullptr) shaped = penalise(numbers, vocab, draw, space);
    if (draw.mask != nullptr) shaped = restricted(shaped == nullptr ? numbers : shaped, vocab, draw.mask, space);
    Row row = {shaped == nullptr ? numbers : shaped, vocab, 0, draw.factor, 0};
    if (shaped != nullptr) tokens[at] = best_of(shaped, 0, vocab).token;
    row.top = row.logits[tokens[at]];
    // Where that is no number, or minus infinity, nothing can be drawn: whoever asked looks at the normaliser.
    if (draw.factor > 0 && row.top - row.top == 0) tokens[at] = draw_row(row, draw, space);
    logprobs[at] = numbers[tokens[at]] - normaliser[at];
  }
}

const char *draw_check(const tg_op &op, const Shape &shape) {
  const int64_t x = op.args[TG_DRAW_X];
  if (!shape.is_buffer(x) || shape.buffers[x].dtype != TG_F32) return "draw: x is no buffer of float32";
  for (int argument = TG_DRAW_ROWS; argument <= TG_DRAW_LOGPROBS; argument++) {
    if (op.args[argument] == 0) return "draw: it is not said how to draw, or where the tokens are";
  }
  return shape.buffers[x].width > INT32_MAX ? "draw: rows are too wide" : nullptr;
}

Scratch draw_scratch(const tg_op &op, const Shape &shape) {
  return {0, Workspace::bytes(shape.buffers[op.args[TG_DRAW_X]].width)};
}

}  // namespace

extern const Kernel draw = {draw_run, draw_check, draw_scratch};

}  // namespace tg::TG_ISA
