// Brings rows as they are stored into panels (weight.cpp has what these look like): whole panels at once where nothing but the
// order changes.
#include <stdlib.h>
#include <string.h>

#include "half.h"
#include "pool.h"
#include "weight.h"
#include "weight_blocks.h"
#include "weight_compact.h"
#include "weight_quantize.h"

namespace tg {
namespace {

constexpr uint32_t kSign = 0x80808080;  // turned over, four integers become themselves + 128

template <typename T>
T bits_of(float x) {
  T bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

float float_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

uint16_t bf16_of(float x) {
  const uint32_t bits = bits_of<uint32_t>(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float float_at(const tg_rows *rows, int64_t index) {
  if (rows->dtype == TG_F32) return static_cast<const float *>(rows->values)[index];
  const uint16_t bits = static_cast<const uint16_t *>(rows->values)[index];
  return rows->dtype == TG_BF16 ? float_of(static_cast<uint32_t>(bits) << 16) : float_of_f16(bits);
}

// Where the units of four bytes of an output begin; the next one is a vector of 64 bytes away.
uint8_t *lane_of(uint8_t *panel, int64_t lane) { return panel + lane * 4; }

// Units of four bytes, with the bits of `flip` turned over. A row that ends within one is filled up with zeros.
void pack_units(uint8_t *to, const uint8_t *from, int64_t bytes, uint32_t flip) {
  int64_t i = 0;
  uint32_t unit = 0;
  for (; i + 4 <= bytes; i += 4, to += 64) {
    memcpy(&unit, from + i, 4);
    unit ^= flip;
    memcpy(to, &unit, 4);
  }
  if (i == bytes) return;
  unit = 0;
  memcpy(&unit, from + i, bytes - i);
  unit ^= flip;
  memcpy(to, &unit, 4);
}

// Four units of four bytes, of one row or of one place in four rows; and the same bytes as eight halves.
typedef uint32_t Quad __attribute__((vector_size(16)));
typedef uint16_t Halves __attribute__((vector_size(16)));

// Of four rows, `stride` bytes apart: their first units, their second ones, and so on.
TG_INLINE void turn(Quad to[4], const uint8_t *from, int64_t stride) {
  Quad row[4];
  for (int64_t k = 0; k < 4; k++) memcpy(&row[k], from + k * stride, 16);
  const Quad a = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5), b = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
  const Quad c = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5), d = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
  to[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
  to[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
  to[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
  to[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

// The units of 16 rows that fill a panel: squares of four by four are turned, so that whole lines are written.
void pack_panel(uint8_t *to, const uint8_t *from, int64_t stride, int64_t bytes, uint32_t flip) {
  const int64_t squares = bytes / 16;
  for (int64_t i = 0; i < squares; i++) {
    for (int64_t lane = 0; lane < kPanel; lane += 4) {
      Quad turned[4];
      turn(turned, from + lane * stride + i * 16, stride);
      for (int64_t k = 0; k < 4; k++) {
        turned[k] ^= flip;
        memcpy(to + (i * 4 + k) * 64 + lane * 4, &turned[k], 16);
      }
    }
  }
  const int64_t done = squares * 16;
  for (int64_t lane = 0; lane < kPanel && done < bytes; lane++) {
    pack_units(lane_of(to + done * kPanel, lane), from + lane * stride + done, bytes - done, flip);
  }
}

// The same of numbers in float16, each of which is a unit; returns how many inputs are in place.
int64_t pack_panel_halves(uint8_t *to, const uint8_t *from, int64_t stride, int64_t ins) {
  const int64_t squares = ins / 8;
  for (int64_t i = 0; i < squares; i++) {
    for (int64_t lane = 0; lane < kPanel; lane += 8) {
      Quad low[4], high[4];  // pairs of inputs of the first four rows, and of the last
      turn(low, from + lane * stride + i * 16, stride);
      turn(high, from + (lane + 4) * stride + i * 16, stride);
      for (int64_t k = 0; k < 4; k++) {
        const Halves a = __builtin_bit_cast(Halves, low[k]), b = __builtin_bit_cast(Halves, high[k]);
        const Halves even = __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
        const Halves odd = __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15);
        uint8_t *line = to + ((i * 8 + k * 2) * kPanel + lane) * 2;
        memcpy(line, &even, 16);
        memcpy(line + kPanel * 2, &odd, 16);
      }
    }
  }
  return squares * 8;
}

// Whether rows are stored as a panel has them, but for their order, and how many bytes a row then has.
int64_t units_as_stored(const tg_weight *weight, const tg_rows *rows) {
  switch (weight->format) {
    case TG_WEIGHT_F32: return rows->dtype == TG_F32 ? weight->ins * 4 : 0;
    case TG_WEIGHT_BF16: return rows->dtype == TG_BF16 ? weight->ins * 2 : 0;
    case TG_WEIGHT_F16: return rows->dtype == TG_F16 ? weight->ins * 2 : 0;
    case TG_WEIGHT_INT8:
    case TG_WEIGHT_INT8_GROUPS: return weight->ins;
    default: return 0;
  }
}

void pack_floats(const tg_weight *weight, uint8_t *to, const tg_rows *rows, int64_t row) {
  const bool wide = weight->format == TG_WEIGHT_F32;
  const int64_t size = wide ? 4 : 2;
  if (rows->dtype == (wide ? TG_F32 : TG_BF16)) {
    const uint8_t *from = static_cast<const uint8_t *>(rows->values) + row * rows->stride * size;
    return pack_units(to, from, weight->ins * size, 0);
  }
  for (int64_t i = 0; i < weight->ins; i++) {
    const float value = float_at(rows, row * rows->stride + i);
    if (wide) {
      memcpy(to + i * 64, &value, 4);
    } else {
      const uint16_t half = bf16_of(value);
      memcpy(to + i / 2 * 64 + i % 2 * 2, &half, 2);
    }
  }
}

// From input `begin` on.
void pack_halves(const tg_weight *weight, uint8_t *panel, int64_t lane, const tg_rows *rows, int64_t row, int64_t begin) {
  const bool halves = rows->dtype == TG_F16;
  for (int64_t i = begin; i < weight->ins; i++) {
    const int64_t from = row * rows->stride + i;
    const uint16_t half = halves ? static_cast<const uint16_t *>(rows->values)[from] : f16_of(float_at(rows, from));
    memcpy(panel + (i * kPanel + lane) * 2, &half, 2);
  }
}

void pack_int8(const tg_weight *weight, uint8_t *to, const tg_rows *rows, int64_t row) {
  pack_units(to, static_cast<const uint8_t *>(rows->values) + row * rows->stride, weight->ins, kSign);
}

void pack_int4(const tg_weight *weight, uint8_t *to, const tg_rows *rows, int64_t row) {
  const uint32_t flip = weight->format == TG_WEIGHT_INT4_GROUPS ? 0x08080808 : 0;
  const uint8_t *from = static_cast<const uint8_t *>(rows->values) + row * rows->stride;
  for (int64_t i = 0; i < weight->ins; i += 8, to += 64) {
    uint32_t low, high;
    memcpy(&low, from + i, 4);
    memcpy(&high, from + i + 4, 4);
    // The low four bits of a value, with the highest turned over, are those of value + 8.
    low = (low ^ flip) & 0x0f0f0f0f;
    high = (high ^ flip) & 0x0f0f0f0f;
    const uint32_t unit = low | high << 4;
    memcpy(to, &unit, 4);
  }
}

void pack_scales(const tg_weight *weight, uint8_t *panel, int64_t lane, const tg_rows *rows, int64_t row) {
  const float *from = rows->scales + row * rows->scale_stride;
  if (weight->format == TG_WEIGHT_MXFP4) {
    uint8_t *bytes = panel + weight->value_bytes + lane;
    for (int64_t g = 0; g < weight->groups; g++) bytes[g * kPanel] = static_cast<uint8_t>(from[g]);
    return;
  }
  uint16_t *to = reinterpret_cast<uint16_t *>(panel + weight->value_bytes) + lane;
  for (int64_t g = 0; g < weight->groups; g++) to[g * kPanel] = f16_of(from[g]);
  if (weight->format != TG_WEIGHT_INT4_ZEROS) return;
  uint8_t *zeros = panel + weight->value_bytes + weight->groups * kPanel * 2 + lane;
  for (int64_t g = 0; g < weight->groups; g++) zeros[g * kPanel] = static_cast<uint8_t>(from[weight->groups + g]);
}

bool is_float(int32_t dtype) { return dtype == TG_F32 || dtype == TG_BF16 || dtype == TG_F16; }

// Whether the rows are numbers that become integers.
bool is_quantized(const tg_weight *weight, const tg_rows *rows) {
  return is_float(rows->dtype) && (weight->format == TG_WEIGHT_INT8 || weight->format == TG_WEIGHT_INT4_GROUPS);
}

const char *check(const tg_weight *weight, int64_t first_out, const tg_rows *rows) {
  if (rows->rows < 0 || first_out < 0 || first_out > weight->outs || rows->rows > weight->outs - first_out) {
    return "the rows leave the weight";
  }
  if (rows->values == nullptr) return "there are no values to pack";
  const int64_t least = is_block(weight->format) ? weight->ins / 256 * block_bytes(weight->format) : weight->ins;
  if (rows->stride < least && rows->rows > 1) return "the rows to pack overlap";
  if (is_block(weight->format)) {
    if (rows->dtype != TG_U8) return "blocks are packed from bytes";
  } else if (is_integer(weight->format)) {
    if (is_quantized(weight, rows)) return nullptr;
    if (rows->dtype != TG_I8) return "of numbers, this integer format is packed from int8 values alone";
    if (rows->scales == nullptr) return "an integer format needs scales";
  } else if (!is_float(rows->dtype)) {
    return "a float format is packed from float32, bfloat16 or float16 values";
  }
  return nullptr;
}

// Copies rows that were found to fit.
void pack(tg_weight *weight, int64_t first_out, const tg_rows *rows) {
  const int64_t stored = units_as_stored(weight, rows), size = stored / weight->ins;
  int64_t whole = 0;  // rows before this one are in place, by panels,
  int64_t begin = 0;  // and of those in float16 as many inputs
  for (int64_t row = 0; row < rows->rows; row++) {
    const int64_t out = first_out + row, lane = out % kPanel;
    uint8_t *panel = weight->values + out / kPanel * weight->panel_bytes;
    uint8_t *to = lane_of(panel, lane);
    if (stored > 0 && lane == 0 && rows->rows - row >= kPanel) {
      const uint8_t *from = static_cast<const uint8_t *>(rows->values) + row * rows->stride * size;
      if (weight->format == TG_WEIGHT_F16) {
        begin = pack_panel_halves(panel, from, rows->stride * size, weight->ins);
      } else {
        pack_panel(panel, from, rows->stride * size, stored, is_integer(weight->format) ? kSign : 0);
      }
      whole = row + kPanel;
    }
    switch (weight->format) {
      case TG_WEIGHT_F32:
      case TG_WEIGHT_BF16:
        if (row >= whole) pack_floats(weight, to, rows, row);
        break;
      case TG_WEIGHT_F16: pack_halves(weight, panel, lane, rows, row, row < whole ? begin : 0); break;
      case TG_WEIGHT_INT8:
        if (row >= whole) pack_int8(weight, to, rows, row);
        weight->scales[out] = rows->scales[row * most(rows->scale_stride, 1)];
        break;
      case TG_WEIGHT_INT8_GROUPS:
        if (row >= whole) pack_int8(weight, to, rows, row);
        pack_scales(weight, panel, lane, rows, row);
        break;
      case TG_WEIGHT_INT4_GROUPS:
      case TG_WEIGHT_INT4_ZEROS:
      case TG_WEIGHT_MXFP4:
        pack_int4(weight, to, rows, row);
        pack_scales(weight, panel, lane, rows, row);
        break;
      default:
        pack_blocks(weight, panel, lane, static_cast<const uint8_t *>(rows->values) + row * rows->stride);
    }
  }
}

// Packs what a panel has of the rows as bfloat16, and that as a compact panel; 1 when its numbers do not fit.
int32_t pack_compact(tg_weight *weight, int64_t first_out, const tg_rows *rows) {
  tg_weight panel = *weight;  // one, as bfloat16
  panel.format = TG_WEIGHT_BF16;
  panel.panel_bytes = weight->padded * kPanel * 2;
  panel.values = static_cast<uint8_t *>(calloc(1, panel.panel_bytes));
  if (panel.values == nullptr) return set_error("no memory for a panel"), -1;
  bool fits = true;
  for (int64_t row = 0, count; row < rows->rows && fits; row += count) {
    const int64_t out = first_out + row, first = out % kPanel, lanes = least(weight->outs - (out - first), kPanel);
    count = least(rows->rows - row, kPanel - first);
    uint8_t *to = weight->values + out / kPanel * weight->panel_bytes;
    if (lanes < kPanel) memset(panel.values, 0, panel.panel_bytes);
    if (count < lanes) plain_panel(weight, lanes, to, panel.values);
    tg_rows some = *rows;
    const int64_t size = rows->dtype == TG_F32 ? 4 : 2;
    some.values = static_cast<const uint8_t *>(rows->values) + row * rows->stride * size;
    some.rows = count;
    pack(&panel, first, &some);
    fits = compact_panel(weight, lanes, panel.values, to);
  }
  free(panel.values);
  return fits ? 0 : 1;
}

// Makes integers of as many rows as a panel has, and packs these; -1 when there is no memory for them.
int32_t quantize(tg_weight *weight, int64_t first_out, const tg_rows *rows) {
  const int64_t ins = weight->ins, groups = most(weight->groups, 1);
  float *numbers = static_cast<float *>(malloc((ins + kPanel * groups) * sizeof(float) + kPanel * ins));
  if (numbers == nullptr) return set_error("no memory for a panel's integers"), -1;
  float *scales = numbers + ins;
  int8_t *integers = reinterpret_cast<int8_t *>(scales + kPanel * groups);
  for (int64_t row = 0, count; row < rows->rows; row += count) {
    count = least(rows->rows - row, kPanel - (first_out + row) % kPanel);
    for (int64_t k = 0; k < count; k++) {
      for (int64_t i = 0; i < ins; i++) numbers[i] = float_at(rows, (row + k) * rows->stride + i);
      if (weight->format == TG_WEIGHT_INT8) {
        quantize8(numbers, ins, integers + k * ins, scales + k);
      } else {
        quantize4(numbers, ins, weight->group, integers + k * ins, scales + k * groups);
      }
    }
    const tg_rows made = {integers, scales, ins, groups, count, TG_I8, 0};
    pack(weight, first_out + row, &made);
  }
  free(numbers);
  return 0;
}

}  // namespace

int32_t weight_pack(tg_weight *weight, int64_t first_out, const tg_rows *rows) {
  const char *why = weight->owned ? check(weight, first_out, rows) : "the packed form is the caller's and is not written";
  if (why != nullptr) return set_error(why), -1;
  if (is_quantized(weight, rows)) return quantize(weight, first_out, rows);
  if (weight->format == TG_WEIGHT_BF16_COMPACT) return pack_compact(weight, first_out, rows);
  pack(weight, first_out, rows);
  return 0;
}

}  // namespace tg
