// What a form does to scores beyond the scale: soft cap, slopes, biases by distance.
#include "attention.h"

namespace tg::TG_ISA {

void fill(float *to, int64_t begin, int64_t end, float value) {
  by_vector(begin, end, [&](int64_t i, int lanes) { store_lanes(to + i, splat(value), lanes); });
}

void apply_form(const Attention &form, float *scores, int64_t count, int64_t head, int64_t key, int64_t position) {
  const float slope = form.slopes == nullptr ? 0.0f : form.slopes[head];
  const float *biases = form.biases == nullptr ? nullptr : form.biases + head * form.distances;
  const int64_t far = form.distances - 1;
  for (int64_t i = 0; i < count; i += kLanes) {  // rows of scores are whole vectors
    Vec s = load(scores + i) * form.scale;
    if (form.cap != 0) {
      const Vec e = exp(s * (2.0f / form.cap));
      s = form.cap * (1.0f - 2.0f / (e + 1.0f));
    }
    if (form.slopes != nullptr) {
      const int64_t first = key + i - position;
      s += slope * (__builtin_convertvector(lane_index(), Vec) + static_cast<float>(first));
    }
    if (biases != nullptr) {
      for (int lane = 0; lane < kLanes; lane++) {
        const int64_t back = position - (key + i + lane);
        s[lane] += biases[back < 0 ? 0 : (back < far ? back : far)];
      }
    }
    store(scores + i, s * kLog2e);
  }
}

}  // namespace tg::TG_ISA
