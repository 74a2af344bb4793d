// Joins the parts that the contexts of single tokens were cut into (Flash-Decoding).
#include "attention.cuh"

constexpr i32 THREADS = 128;

// Grid: rows of single tokens, heads. A part without positions has a sum of 0, and its values are not read.
KERNEL(attention_combine, Attention, THREADS) {
    const i32 head = blockIdx.y;
    const i64 row = static_cast<i64>(blockIdx.x) * p.heads + head;
    const float* state = p.state + row * p.splits * 2;
    float highest = LOWEST, sum = 0.0f;
    for (i32 split = 0; split < p.splits; ++split) highest = fmaxf(highest, state[2 * split]);
    for (i32 split = 0; split < p.splits; ++split) sum += state[2 * split + 1] * rescale(state[2 * split], highest);
    float scale;
    const float inverse = inverse_sum(p, head, highest, sum, scale);
    const i64 token = p.work[4 * (p.tiles + static_cast<i64>(blockIdx.x)) + 1];
    for (i32 i = threadIdx.x; i < VALUE_DIM; i += THREADS) {
        float value = 0.0f;
        for (i32 split = 0; split < p.splits; ++split) {
            if (state[2 * split + 1] == 0.0f) continue;
            value += p.partial[(row * p.splits + split) * VALUE_DIM + i] * rescale(state[2 * split], highest);
        }
        p.out[(token * p.heads + head) * VALUE_DIM + i] = from_float<T>(value * scale * inverse);
    }
}
