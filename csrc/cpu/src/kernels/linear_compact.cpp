// Compact bfloat16 as TG_WEIGHT_BF16 has it, and as tiles: where enough rows pass by for it to be unpacked once for all of them.
#include "linear_compact.h"

namespace tg::TG_ISA {

void unpack_compact(const tg_weight *weight, int64_t panel, int64_t first, int64_t count, char *to) {
  CompactTiles tiles;
  tiles.open(weight, panel, first);
  for (int64_t i = 0; i < count; i += CompactTiles::kInputs) tiles.next(to + i * kPanel * 2);
}

}  // namespace tg::TG_ISA
