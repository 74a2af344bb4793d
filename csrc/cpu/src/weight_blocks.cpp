// Blocks of 256 inputs as GGUF files have them, brought into panels; every bit of a value and of a scale is kept.
//
// A panel is one record after another, each 256 inputs of its 16 outputs:
//   nibbles  [in / 8][16][4]  the low four bits: the low nibbles are the unit of four inputs, the high ones the next
//   higher   Q5_K: [in / 4][64 bits]; Q6_K: [in / 4][16][4 of two bits: those of bytes that are 16 apart in a unit]
//   scales   [16] float16, then with minima [16] float16 for them
//   groups   for each group of 32 (Q6_K: 16) inputs [16] bytes, then with minima [16] bytes for them
#include "weight_blocks.h"

#include <string.h>

namespace tg {
namespace {

constexpr int64_t kBlock = 256;

// One block of a row, taken apart.
struct Block {
  uint8_t values[kBlock];
  uint16_t scale, low;           // float16
  uint8_t scales[16], least[8];  // of the groups
};

// Scales and minima of six bits each.
void read_six(const uint8_t *from, Block &block) {
  for (int g = 0; g < 8; g++) {
    if (g < 4) {
      block.scales[g] = from[g] & 63;
      block.least[g] = from[g + 4] & 63;
    } else {
      block.scales[g] = static_cast<uint8_t>((from[g + 4] & 15) | (from[g - 4] >> 6) << 4);
      block.least[g] = static_cast<uint8_t>((from[g + 4] >> 4) | (from[g] >> 6) << 4);
    }
  }
}

void read_q45(const uint8_t *from, bool five, Block &block) {
  memcpy(&block.scale, from, 2);
  memcpy(&block.low, from + 2, 2);
  read_six(from + 4, block);
  const uint8_t *high = from + 16, *low = five ? high + 32 : high;
  for (int i = 0; i < kBlock; i++) {
    const uint8_t both = low[i / 64 * 32 + i % 32];
    block.values[i] = i % 64 < 32 ? both & 15 : both >> 4;
    if (five) block.values[i] |= static_cast<uint8_t>((high[i % 32] >> (i / 32) & 1) << 4);
  }
}

void read_q6(const uint8_t *from, Block &block) {
  const uint8_t *high = from + 128;
  memcpy(block.scales, from + 192, 16);
  memcpy(&block.scale, from + 208, 2);
  for (int i = 0; i < kBlock; i++) {
    const int half = i / 128, quarter = i % 128 / 32, at = i % 32;
    const uint8_t both = from[half * 64 + quarter % 2 * 32 + at];
    const uint8_t low = quarter < 2 ? both & 15 : both >> 4;
    block.values[i] = static_cast<uint8_t>(low | (high[half * 32 + at] >> (2 * quarter) & 3) << 4);
  }
}

void write(const Block &block, int32_t format, int64_t lane, uint8_t *record) {
  uint8_t *plane = record + kBlock * kPanel / 2;
  for (int i = 0; i < kBlock; i++) {
    const int64_t at = lane * 4 + i % 4, unit = i / 4;
    uint8_t &both = record[i / 8 * 64 + at];
    const uint8_t low = block.values[i] & 15, high = block.values[i] >> 4;
    both = static_cast<uint8_t>(i % 8 < 4 ? (both & 0xf0) | low : (both & 0x0f) | low << 4);
    if (format == TG_WEIGHT_Q5_K) {
      uint8_t &bits = plane[unit * 8 + at / 8];
      bits = static_cast<uint8_t>((bits & ~(1 << at % 8)) | high << at % 8);
    } else if (format == TG_WEIGHT_Q6_K) {
      const int64_t shift = at / 16 * 2;
      uint8_t &bits = plane[unit * 16 + at % 16];
      bits = static_cast<uint8_t>((bits & ~(3 << shift)) | high << shift);
    }
  }
  const bool least = format != TG_WEIGHT_Q6_K;
  uint8_t *factors = plane + (format == TG_WEIGHT_Q4_K ? 0 : format == TG_WEIGHT_Q5_K ? kBlock * 2 : kBlock * 4);
  memcpy(factors + lane * 2, &block.scale, 2);
  if (least) memcpy(factors + kPanel * 2 + lane * 2, &block.low, 2);
  uint8_t *scales = factors + (least ? 2 : 1) * kPanel * 2;
  for (int64_t g = 0; g < (least ? 8 : 16); g++) {
    scales[g * (least ? 2 : 1) * kPanel + lane] = block.scales[g];
    if (least) scales[(g * 2 + 1) * kPanel + lane] = block.least[g];
  }
}

}  // namespace

bool is_block(int32_t format) { return format >= TG_WEIGHT_Q4_K && format <= TG_WEIGHT_Q6_K; }

int64_t block_group(int32_t format) { return format == TG_WEIGHT_Q6_K ? 16 : 32; }

int64_t block_bytes(int32_t format) { return format == TG_WEIGHT_Q4_K ? 144 : format == TG_WEIGHT_Q5_K ? 176 : 210; }

int64_t block_record(int32_t format) {
  const int64_t higher = format == TG_WEIGHT_Q4_K ? 0 : format == TG_WEIGHT_Q5_K ? 1 : 2;
  const int64_t scales = format == TG_WEIGHT_Q6_K ? kPanel * 2 + 16 * kPanel : 2 * (kPanel * 2 + 8 * kPanel);
  return round_up(kBlock * kPanel * (4 + higher) / 8 + scales, 64);
}

void pack_blocks(const tg_weight *weight, uint8_t *panel, int64_t lane, const uint8_t *row) {
  for (int64_t at = 0; at < weight->ins / kBlock; at++, row += block_bytes(weight->format), panel += weight->record) {
    Block block;
    if (weight->format == TG_WEIGHT_Q6_K) {
      read_q6(row, block);
    } else {
      read_q45(row, weight->format == TG_WEIGHT_Q5_K, block);
    }
    write(block, weight->format, lane, panel);
  }
}

}  // namespace tg
