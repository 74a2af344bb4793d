// What logits become before a draw: repetition penalty (arXiv 1909.05858; prompt and output), frequency and presence
// penalties (OpenAI's; output only), then a grammar's mask. A block takes a row; rows without either are copied.
//
// The tokens of a row's history are counted in memory of its own, by atomic sums, since a vocabulary fits nowhere else.
#include "device.cuh"

struct Shape {
    const float* logits;       // [rows, vocab], rows `stride` apart
    float* out;                // [rows, vocab]
    const u32* bits;           // [rows, words] a token's bit says that it may come; null: no row has a mask
    const i32* masked;         // [rows] whether the row has one
    const i32* history;        // [slots, history_stride] token ids by position; null: no row has a penalty
    u32* counts;               // [rows, vocab]
    const i64* slots;          // [rows] the row's of the history
    const i64* known;          // [rows] tokens of the history that count
    const i64* prompt;         // [rows] of these, the prompt's
    const float* repetition;   // [rows] 1: off
    const float* frequency;    // [rows] 0: off
    const float* presence;     // [rows] 0: off
    i64 stride;
    i64 history_stride;
    i32 vocab;
    i32 words;
};

constexpr i32 THREADS = 512;
constexpr u32 OF_PROMPT = 0x80000000u;  // stands in the prompt, and nowhere in the output

// Counts the tokens of the output, then marks those of the prompt that are not among them.
DEVICE void count_tokens(const Shape& p, i64 row, u32* counts) {
    for (i32 id = threadIdx.x; id < p.vocab; id += THREADS) counts[id] = 0;
    __syncthreads();
    const i32* tokens = p.history + p.slots[row] * p.history_stride;
    const i64 known = p.known[row], prompt = p.prompt[row] < known ? p.prompt[row] : known;
    for (i64 at = prompt + threadIdx.x; at < known; at += THREADS) atomicAdd(&counts[tokens[at]], 1u);
    __syncthreads();
    for (i64 at = threadIdx.x; at < prompt; at += THREADS) {
        if (counts[tokens[at]] == 0) counts[tokens[at]] = OF_PROMPT;
    }
    __syncthreads();
}

KERNEL(shape, Shape, THREADS) {
    const i64 row = blockIdx.x;
    const float* logits = p.logits + row * p.stride;
    float* out = p.out + row * p.vocab;
    const u32* bits = p.bits != nullptr && p.masked[row] != 0 ? p.bits + row * p.words : nullptr;
    float repetition = 1.0f, frequency = 0.0f, presence = 0.0f;
    u32* counts = nullptr;
    if (p.history != nullptr) {
        repetition = p.repetition[row];
        frequency = p.frequency[row];
        presence = p.presence[row];
        if (repetition != 1.0f || frequency != 0.0f || presence != 0.0f) {
            counts = p.counts + row * p.vocab;
            count_tokens(p, row, counts);
        }
    }
    for (i32 id = threadIdx.x; id < p.vocab; id += THREADS) {
        float x = logits[id];
        const u32 count = counts == nullptr ? 0 : counts[id];
        if (count != 0) {
            x = x < 0.0f ? x * repetition : x / repetition;
            if (count != OF_PROMPT) x = x - static_cast<float>(count) * frequency - presence;
        }
        const bool allowed = bits == nullptr || (bits[id >> 5] >> (id & 31) & 1) != 0;
        out[id] = allowed ? x : float_of_bits(0xff800000u);  // minus infinity
    }
}
