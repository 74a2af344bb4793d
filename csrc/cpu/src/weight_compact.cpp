// Of a weight's sixteen bits the upper eight, a sign and seven bits of exponent, say little: within a layer nearly all exponents lie
// within sixteen powers of two (Zhang et al., "70% Size, 100% Accuracy: Lossless LLM Compression via DFloat11", 2025, find 2.6 bits of
// information in them). Four bits name a sign and one of the eight most frequent exponents, and what has none of these is written down.
#include "weight_compact.h"

#include <string.h>

namespace tg {
namespace {

constexpr int64_t kPairs = 8;      // of exponents, that have a code
constexpr int64_t kUnit = 64;      // bytes of two inputs of a plain panel's outputs
constexpr int64_t kSampled = 256;  // units of which all are counted; of more, one in four

typedef uint8_t Line __attribute__((vector_size(16)));

// The most frequent exponents, without their last bits, in rising order; there may be fewer.
struct Frequent {
  uint8_t pair[kPairs] = {};

  Frequent(const uint8_t *plain, int64_t ins, int64_t lanes) {
    uint32_t seen[128] = {};
    const int64_t units = ceil_div(ins, 2), apart = units > kSampled ? 4 : 1;
    for (int64_t unit = 0; unit < units; unit += apart) {
      for (int64_t i = 0; i < 2 * lanes; i++) seen[plain[unit * kUnit + i * 2 + 1] & 0x7f]++;
    }
    if (ins % 2 == 1 && (units - 1) % apart == 0) seen[0] -= static_cast<uint32_t>(lanes);  // what is behind the last input
    bool chosen[128] = {};
    for (int64_t k = 0; k < kPairs; k++) {
      int best = -1;
      for (int i = 0; i < 128; i++) {
        if (seen[i] > 0 && !chosen[i] && (best < 0 || seen[i] > seen[best])) best = i;
      }
      if (best >= 0) chosen[best] = true;
    }
    int64_t count = 0;
    for (int i = 0; i < 128; i++) {
      if (chosen[i]) pair[count++] = static_cast<uint8_t>(i);
    }
    for (; count < kPairs; count++) pair[count] = count == 0 ? 0 : pair[count - 1];
  }
};

// What a number without a code has in its place.
void spill(Compact *head, int64_t place, uint8_t high, uint8_t low) {
  const uint16_t code = high >> 7 << 3;
  Spill made;
  made.place = static_cast<uint32_t>(place);
  made.number = static_cast<uint16_t>(high << 8 | low);
  made.stand_in = static_cast<uint16_t>(head->high[code] << 8 | low);
  uint32_t at = head->count++;
  for (; at > 0 && head->spills[at - 1].place > made.place; at--) head->spills[at] = head->spills[at - 1];
  head->spills[at] = made;
}

}  // namespace

int64_t compact_head(int64_t padded) { return sizeof(Compact) + round_up(compact_spills(padded) * sizeof(Spill), 64); }
int64_t compact_values(int64_t padded) { return padded / kCompactInputs * kCompactRecord; }

bool compact_panel(const tg_weight *weight, int64_t lanes, const uint8_t *plain, uint8_t *panel) {
  Compact *head = reinterpret_cast<Compact *>(panel);
  const Frequent frequent(plain, weight->ins, lanes);
  for (int64_t k = 0; k < kPairs; k++) {
    head->high[k] = frequent.pair[k];
    head->high[k + kPairs] = frequent.pair[k] | 0x80;
  }
  const int64_t most = compact_spills(weight->padded);
  memset(head->spills, 0, head->count * sizeof(Spill));  // of a panel that is packed piece by piece
  head->count = 0;
  uint8_t *record = panel + compact_head(weight->padded);
  for (int64_t first = 0; first < weight->padded; first += kCompactInputs, record += kCompactRecord) {
    Line codes[4] = {};
    for (int64_t half = 0; half < 2; half++) {
      const uint8_t *units = plain + (first / 2 + half * 2) * kUnit;
      for (int64_t part = 0; part < 4; part++) {
        Line a, b;
        memcpy(&a, units + part * 16, 16);
        memcpy(&b, units + kUnit + part * 16, 16);
        const Line low = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
        const Line high = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
        const Line pairs = high & 0x7f;
        Line code = {}, known = {};
        for (int64_t k = 0; k < kPairs; k++) {
          const Line same = reinterpret_cast<Line>(pairs == frequent.pair[k]), number = Line{} + static_cast<uint8_t>(k);
          code = (same & number) | (~same & code);
          known |= same;
        }
        code |= (high & 0x80) >> 4;
        memcpy(record + half * 64 + part * 16, &low, 16);
        codes[part] |= half == 0 ? code : code << 4;
        uint64_t all[2];
        memcpy(all, &known, 16);
        if ((all[0] & all[1]) == ~uint64_t{0}) continue;
        for (int64_t i = 0; i < 16; i++) {
          const int64_t input = first + half * 4 + i / 8 * 2 + i % 2, lane = part * 4 + i % 8 / 2;
          if (known[i] != 0 || input >= weight->ins || lane >= lanes) continue;
          if (head->count == most) return false;
          spill(head, input * kPanel + lane, high[i], low[i]);
        }
      }
    }
    memcpy(record + 128, codes, 64);
  }
  return true;
}

bool compact_is_whole(const tg_weight *weight, const uint8_t *panel) {
  const Compact *head = reinterpret_cast<const Compact *>(panel);
  if (head->count > static_cast<uint64_t>(compact_spills(weight->padded))) return false;
  for (uint32_t i = 0; i < head->count; i++) {
    if (head->spills[i].place >= static_cast<uint64_t>(weight->ins * kPanel)) return false;
  }
  return true;
}

void plain_panel(const tg_weight *weight, int64_t lanes, const uint8_t *panel, uint8_t *plain) {
  const Compact *head = reinterpret_cast<const Compact *>(panel);
  const uint8_t *values = panel + compact_head(weight->padded);
  const auto place = [&](int64_t input, int64_t lane) { return plain + input / 2 * kUnit + (lane * 2 + input % 2) * 2; };
  for (int64_t input = 0; input < weight->ins; input++) {
    for (int64_t lane = 0; lane < lanes; lane++) {
      const uint16_t number = compact_number(head, values, input, lane);
      memcpy(place(input, lane), &number, 2);
    }
  }
  for (uint32_t i = 0; i < head->count; i++) {
    const Spill &each = head->spills[i];
    memcpy(place(each.place / kPanel, each.place % kPanel), &each.number, 2);
  }
}

}  // namespace tg
