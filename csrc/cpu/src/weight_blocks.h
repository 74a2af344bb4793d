// The blocks of GGUF files, TG_WEIGHT_Q4_K to TG_WEIGHT_Q6_K: 256 inputs with one scale, in groups with a factor each.
#pragma once

#include "kernel.h"

namespace tg {

bool is_block(int32_t format);
int64_t block_group(int32_t format);   // inputs to a group
int64_t block_bytes(int32_t format);   // of a block in a file
int64_t block_record(int32_t format);  // bytes of a block of each of a panel's outputs
// Packs a row of blocks, as a file has it, as one of a panel's outputs.
void pack_blocks(const tg_weight *weight, uint8_t *panel, int64_t lane, const uint8_t *row);

}  // namespace tg
