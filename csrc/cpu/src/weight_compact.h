// bfloat16 in 12 bits with nothing lost, TG_WEIGHT_BF16_COMPACT: `Compact` in kernel.h says how a panel of it is laid out.
#pragma once

#include "kernel.h"

namespace tg {

int64_t compact_head(int64_t padded);    // bytes before a panel's values
int64_t compact_values(int64_t padded);  // bytes of these
// The first `lanes` outputs of a panel as TG_WEIGHT_BF16 has it. False: too many of its numbers have no code.
bool compact_panel(const tg_weight *weight, int64_t lanes, const uint8_t *plain, uint8_t *panel);
// Whether what is written down of a panel lies in it.
bool compact_is_whole(const tg_weight *weight, const uint8_t *panel);
// The other way.
void plain_panel(const tg_weight *weight, int64_t lanes, const uint8_t *panel, uint8_t *plain);

}  // namespace tg
