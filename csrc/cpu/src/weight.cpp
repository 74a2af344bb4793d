// How weights are packed. Sixteen outputs lie side by side (a panel), and inputs follow each other in units of four bytes, so
// that one vector of 64 bytes has one unit of each of the 16 outputs: it multiplies a broadcast unit of x without any sum across
// lanes, and 16 such vectors are a tile of AMX.
//
//   float32      [panel][in][16]
//   bfloat16     [panel][in / 2][16][2]         ins rounded up to 32
//   compact      see `Compact` in kernel.h: bfloat16 in 12 bits
//   float16      [panel][in][16]                ins rounded up to 2; each unit is of one input alone
//   int8         [panel][in / 4][16][4]         ins rounded up to 64; value + 128
//   int8 groups  as int8, then [group][16] float16 behind each panel
//   int4 groups  [panel][in / 8][16][4]         value + 8; the low nibbles are the unit of four inputs, the high ones the next
//   int4 zeros   as int4 groups with the value as it is, then [group][16] bytes, the zero points
//   mxfp4        as int4 groups with the number's four bits as they are, and [group][16] bytes of scales
//   blocks       see weight_blocks.cpp
//
// Integers are stored without sign, and x, quantized, has one: the products of VNNI and AMX take them so, and the offset is
// taken off again by the sum of x, which is known for each row.
#include "weight.h"

#include <stdlib.h>

#include "pool.h"
#include "room.h"
#include "weight_blocks.h"
#include "weight_compact.h"

namespace tg {
namespace {

constexpr int64_t kMost = int64_t{1} << 31;

// A weight without memory: its sizes, and in `scales` NULL. NULL with an error when there is no such weight.
tg_weight *shaped(int32_t format, int64_t outs, int64_t ins, int64_t group) {
  const bool blocks = is_block(format), compact = format == TG_WEIGHT_BF16_COMPACT;
  const bool halves = format == TG_WEIGHT_BF16 || format == TG_WEIGHT_F16;
  const bool known = blocks || is_integer(format) || halves || compact || format == TG_WEIGHT_F32;
  if (!known) return set_error("no such weight format"), nullptr;
  if (outs < 1 || ins < 1 || outs > kMost || ins > kMost) return set_error("a weight has 1 to 2^31 rows and columns"), nullptr;
  if (compact && ins > kMost / kPanel) return set_error("a compact weight has at most 2^27 columns"), nullptr;
  // Where a sum of products of 255 and 127 may leave 32 bits.
  if ((is_integer(format) || blocks) && ins > 65536) return set_error("an integer format has at most 65536 inputs"), nullptr;
  if (has_groups(format)) {
    if (group != 32 && group != 64 && group != 128) return set_error("a group has 32, 64 or 128 inputs"), nullptr;
    if (format == TG_WEIGHT_MXFP4 && group != 32) return set_error("a group of MXFP4 has 32 inputs"), nullptr;
    if (ins % group != 0) return set_error("the inputs are not a multiple of the group"), nullptr;
  }
  if (blocks && ins % 256 != 0) return set_error("blocks have 256 inputs, and the inputs are not a multiple"), nullptr;
  tg_weight *weight = static_cast<tg_weight *>(calloc(1, sizeof(tg_weight)));
  if (weight == nullptr) return set_error("no memory for a weight"), nullptr;
  weight->format = format;
  weight->outs = outs;
  weight->ins = ins;
  weight->group = has_groups(format) ? group : 0;
  weight->panels = ceil_div(outs, kPanel);
  weight->padded = format == TG_WEIGHT_F32 ? ins : format == TG_WEIGHT_BF16 || compact ? round_up(ins, 32) : round_up(ins, 64);
  if (format == TG_WEIGHT_F16) weight->padded = round_up(ins, 2);
  if (has_groups(format)) weight->padded = ins;  // a group of 32 may end the row: a tile of half the height
  weight->groups = has_groups(format) ? ins / group : 0;
  const int64_t bits = format == TG_WEIGHT_F32 ? 32 : halves ? 16 : is_int4(format) ? 4 : 8;
  weight->value_bytes = weight->padded * kPanel * bits / 8;
  weight->panel_bytes = weight->value_bytes + weight->groups * kPanel * bytes_of_scale(format);
  if (blocks) {
    weight->group = block_group(format);
    weight->padded = ins;
    weight->groups = ins / weight->group;
    weight->record = block_record(format);
    weight->panel_bytes = ins / 256 * weight->record;
  }
  if (compact) {
    weight->value_bytes = compact_values(weight->padded);
    weight->panel_bytes = compact_head(weight->padded) + weight->value_bytes;
  }
  const int64_t scales = format == TG_WEIGHT_INT8 ? weight->panels * kPanel * 4 : 0;
  weight->bytes = round_up(weight->panels * weight->panel_bytes, 64) + scales;
  return weight;
}

void place(tg_weight *weight, uint8_t *memory) {
  weight->values = memory;
  const int64_t values = round_up(weight->panels * weight->panel_bytes, 64);
  weight->scales = weight->format == TG_WEIGHT_INT8 ? reinterpret_cast<float *>(memory + values) : nullptr;
}

}  // namespace

tg_weight *weight_create(int32_t format, int64_t outs, int64_t ins, int64_t group) {
  tg_weight *weight = shaped(format, outs, ins, group);
  if (weight == nullptr) return nullptr;
  void *memory = room_create(weight->bytes);
  if (memory == nullptr) {
    free(weight);
    return set_error("no memory for a packed weight"), nullptr;
  }
  weight->owned = true;
  place(weight, static_cast<uint8_t *>(memory));
  return weight;
}

tg_weight *weight_map(int32_t format, int64_t outs, int64_t ins, int64_t group, const void *memory, int64_t bytes) {
  tg_weight *weight = shaped(format, outs, ins, group);
  if (weight == nullptr) return nullptr;
  if (memory == nullptr || reinterpret_cast<uintptr_t>(memory) % 64 != 0 || bytes != weight->bytes) {
    free(weight);
    return set_error("the packed form is not aligned, or of another size than such a weight has"), nullptr;
  }
  place(weight, static_cast<uint8_t *>(const_cast<void *>(memory)));
  for (int64_t at = 0; format == TG_WEIGHT_BF16_COMPACT && at < weight->panels; at++) {
    if (compact_is_whole(weight, weight->values + at * weight->panel_bytes)) continue;
    free(weight);
    return set_error("the packed form is damaged; delete the file that it lies in"), nullptr;
  }
  return weight;
}

const void *weight_memory(const tg_weight *weight) { return weight->values; }

int32_t weight_widen(tg_weight *weight) {
  if (!weight->owned || weight->format != TG_WEIGHT_BF16_COMPACT) return set_error("only compact weights become wider"), -1;
  tg_weight *plain = weight_create(TG_WEIGHT_BF16, weight->outs, weight->ins, 0);
  if (plain == nullptr) return -1;
  room_destroy(weight->values, weight->bytes);
  *weight = *plain;
  free(plain);
  return 0;
}

int64_t weight_bytes(const tg_weight *weight) { return weight->bytes; }

void weight_destroy(tg_weight *weight) {
  if (weight == nullptr) return;
  if (weight->owned) room_destroy(weight->values, weight->bytes);
  free(weight);
}

}  // namespace tg
