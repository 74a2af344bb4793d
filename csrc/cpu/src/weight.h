// Packed weights; what they are packed to is the same for every instruction set.
#pragma once

#include "kernel.h"

namespace tg {

inline bool is_int4(int32_t format) {
  return format == TG_WEIGHT_INT4_GROUPS || format == TG_WEIGHT_INT4_ZEROS || format == TG_WEIGHT_MXFP4;
}
inline bool has_groups(int32_t format) { return format == TG_WEIGHT_INT8_GROUPS || is_int4(format); }
inline int64_t bytes_of_scale(int32_t format) { return format == TG_WEIGHT_INT4_ZEROS ? 3 : format == TG_WEIGHT_MXFP4 ? 1 : 2; }
inline bool is_integer(int32_t format) { return format == TG_WEIGHT_INT8 || has_groups(format); }

tg_weight *weight_create(int32_t format, int64_t outs, int64_t ins, int64_t group);
int32_t weight_pack(tg_weight *weight, int64_t first_out, const tg_rows *rows);
int64_t weight_bytes(const tg_weight *weight);
void weight_destroy(tg_weight *weight);
const void *weight_memory(const tg_weight *weight);
tg_weight *weight_map(int32_t format, int64_t outs, int64_t ins, int64_t group, const void *memory, int64_t bytes);
int32_t weight_widen(tg_weight *weight);

}  // namespace tg
