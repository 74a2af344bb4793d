// Joins the parts that contexts were cut into (Flash-Decoding).
#include "attention.cuh"

constexpr i32 THREADS = 128;

// Grid: single tokens, then tokens of tiles where those are in parts; heads. A part without positions has a sum of 0, and its
// values are not read.
KERNEL(attention_combine, Attention, THREADS) {
    const i32 head = blockIdx.y, index = blockIdx.x, other = index - p.singles;
    const bool single = other < 0;
    const i32 row = single ? p.tiles + index : other / p.tile_tokens, token = single ? 0 : other % p.tile_tokens;
    const i32* work = p.work + 4 * static_cast<i64>(row);
    const i32 splits = single ? p.splits : p.tile_splits;
    if (token >= work[2] || splits == 1) return;  // nobody, or it is there already
    const i64 first = single ? static_cast<i64>(index) * p.heads * splits
                             : static_cast<i64>(p.singles) * p.heads * p.splits + static_cast<i64>(other) * p.heads * splits;
    const i64 part = first + static_cast<i64>(head) * splits;
    const float* state = p.state + part * 2;
    float highest = LOWEST, sum = 0.0f;
    for (i32 split = 0; split < splits; ++split) highest = fmaxf(highest, state[2 * split]);
    for (i32 split = 0; split < splits; ++split) sum += state[2 * split + 1] * rescale(state[2 * split], highest);
    float scale;
    const float inverse = inverse_sum(p, head, highest, sum, scale);
    T* const out = p.out + (static_cast<i64>(work[1] + token) * p.heads + head) * VALUE_DIM;
    for (i32 i = threadIdx.x; i < VALUE_DIM; i += THREADS) {
        float value = 0.0f;
        for (i32 split = 0; split < splits; ++split) {
            if (state[2 * split + 1] == 0.0f) continue;
            value += p.partial[(part + split) * VALUE_DIM + i] * rescale(state[2 * split], highest);
        }
        out[i] = from_float<T>(value * scale * inverse);
    }
}
