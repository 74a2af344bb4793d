// Packed weights; what they are packed to is the same for every instruction set.
#pragma once

#include "kernel.h"

namespace tg {

tg_weight *weight_create(int32_t format, int64_t outs, int64_t ins, int64_t group);
int32_t weight_pack(tg_weight *weight, int64_t first_out, const tg_rows *rows);
int64_t weight_bytes(const tg_weight *weight);
void weight_destroy(tg_weight *weight);
const void *weight_memory(const tg_weight *weight);
tg_weight *weight_map(int32_t format, int64_t outs, int64_t ins, int64_t group, const void *memory, int64_t bytes);
int32_t weight_widen(tg_weight *weight);

}  // namespace tg
