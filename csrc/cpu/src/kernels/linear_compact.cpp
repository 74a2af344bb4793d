// Compact bfloat16 as TG_WEIGHT_BF16 has it, and as tiles: where enough rows pass by for it to be unpacked once for all of them.
#include "linear_compact.h"

namespace tg::TG_ISA {

void unpack_compact(const tg_weight *weight, int64_t panel, int64_t first, int64_t count, char *to) {
  const Compact *head = head_of(weight, panel);
  const uint8_t *record = values_of(weight, panel) + first / kCompactInputs * kCompactRecord;
  Codes codes;
  codes.open(head);
  char *unit = to;
  for (int64_t i = 0; i < count / kCompactInputs; i++, record += kCompactRecord) {
    __builtin_prefetch(record + 4096, 0, 2);
    __builtin_prefetch(record + 4096 + 64, 0, 2);
    __builtin_prefetch(record + 4096 + 128, 0, 2);
#pragma GCC unroll 4
    for (int u = 0; u < kCompactUnits; u++, unit += 64) {
      for (int part = 0; part < kParts; part++) {
        const UVec numbers = codes.unit(record, u, part);
        memcpy(unit + part * kLanes * 4, &numbers, sizeof numbers);
      }
    }
  }
  for (uint32_t i = 0; i < head->count; i++) {
    const Spill &spill = head->spills[i];
    const int64_t input = spill.place / kPanel - first, lane = spill.place % kPanel;
    if (input >= 0 && input < count) memcpy(to + input / 2 * 64 + lane * 4 + input % 2 * 2, &spill.number, 2);
  }
}

}  // namespace tg::TG_ISA
