// Where products by tiles get the weight's tiles from: as it is packed, or from where it is unpacked to.
#pragma once

#include "../tile.h"
#include "linear_compact.h"

#if defined(__AMX_TILE__)
namespace tg::TG_ISA {

constexpr int64_t kTile = 1024;        // bytes
constexpr int64_t kPartTiles = 18;     // of a panel, of which two are in the first-level cache, with room for other things
constexpr int64_t kRecordTiles = 16;   // of one in groups: whole records
constexpr int64_t kEarly = 3, kRing = 4;  // tiles that a compact panel is unpacked before its products, and has room for
constexpr int64_t kUnpackedBytes = 2 * kPartTiles * kTile;

TG_INLINE bool is_compact_form(const tg_weight *weight) { return weight->format == TG_WEIGHT_BF16_COMPACT; }
TG_INLINE bool unpacks(const tg_weight *weight) { return has_groups(weight) || is_compact_form(weight); }

TG_INLINE void fetch_tile(const uint8_t *from) {
#pragma GCC unroll 16
  for (int line = 0; line < 16; line++) __builtin_prefetch(from + kAskedAhead + line * 64, 0, kAskedInto);
}

// Where the products of one pass get their tiles from: kStreams panels side by side, column after column, and behind the last one
// of the panels those that follow them.
template <int kStreams>
class Packed {
 public:
  Packed(const tg_weight *weight, int64_t panel, int64_t apart, int64_t, int64_t, char *) {
    for (int s = 0; s < kStreams; s++) from_[s] = weight->values + (panel + s * apart) * weight->panel_bytes;
  }
  TG_INLINE void begin() {}
  template <int kStream>
  TG_INLINE const uint8_t *take() const {
    fetch_tile(from_[kStream]);
    return from_[kStream];
  }
  TG_INLINE void end() {
    for (int s = 0; s < kStreams; s++) from_[s] += kTile;
  }

 private:
  const uint8_t *from_[kStreams];
};

// Compact panels become tiles some columns before these are multiplied, so that neither waits for the other.
template <int kStreams>
class Unpacked {
 public:
  Unpacked(const tg_weight *weight, int64_t panel, int64_t apart, int64_t panels, int64_t columns, char *ring)
      : weight_(weight), panel_(panel), apart_(apart), columns_(columns), left_(panels * columns), ring_(ring) {
    for (int i = 0; i < kEarly; i++) begin();
  }
  TG_INLINE void begin() {
    if (left_ == 0) return;
    if (left_ % columns_ == 0) {
      for (int s = 0; s < kStreams; s++) tiles_[s].open(weight_, panel_ + s * apart_);
      panel_++;
    }
    for (int s = 0; s < kStreams; s++) tiles_[s].next(ring_ + (s * kRing + made_) * kTile);
    made_ = (made_ + 1) % kRing;
    left_--;
  }
  template <int kStream>
  TG_INLINE const uint8_t *take() const {
    return reinterpret_cast<const uint8_t *>(ring_) + (kStream * kRing + taken_) * kTile;
  }
  TG_INLINE void end() { taken_ = (taken_ + 1) % kRing; }

 private:
  const tg_weight *weight_;
  int64_t panel_, apart_, columns_, left_;
  char *ring_;
  int64_t made_ = 0, taken_ = 0;
  CompactTiles tiles_[kStreams];
};

// Parts of a panel or two, of so many columns each, that blocks of rows are multiplied with. While they are, what follows is asked for.
struct Part {
  int64_t panel, panels, column, columns;
};

// Asks for what two panels have from somewhere on, so many lines with each column.
class Asking {
 public:
  // [from, end) of each; null: of none.
  TG_INLINE void begin(const uint8_t *first, const uint8_t *second, int64_t bytes, int64_t steps) {
    from_[0] = first, from_[1] = second;
    end_[0] = first == nullptr ? nullptr : first + bytes;
    end_[1] = second == nullptr ? nullptr : second + bytes;
    lines_ = ceil_div(ceil_div(bytes, 64), steps);
  }
  TG_INLINE void some() {
    for (int64_t line = 0; line < lines_; line++) {
#pragma GCC unroll 2
      for (int s = 0; s < 2; s++) {
        if (from_[s] >= end_[s]) continue;
        __builtin_prefetch(from_[s], 0, 2);
        from_[s] += 64;
      }
    }
  }

 private:
  const uint8_t *from_[2] = {}, *end_[2] = {};
  int64_t lines_ = 0;
};

// As the weight is packed.
class PackedParts {
 public:
  Asking asking;

  PackedParts(const Linear &job, char *) : weight_(job.weight) {}
  TG_INLINE void take(const Part &part) { now_ = part; }
  TG_INLINE const uint8_t *at(int s) const { return address(now_, s); }
  TG_INLINE void follow(const Part &next, int64_t pairs) {
    const uint8_t *first = next.panels < 1 ? nullptr : address(next, 0), *second = next.panels < 2 ? nullptr : address(next, 1);
    asking.begin(first, second, next.columns * kTile, pairs * now_.columns);
  }

 private:
  TG_INLINE const uint8_t *address(const Part &part, int64_t s) const {
    return weight_->values + (part.panel + s) * weight_->panel_bytes + part.column * kTile;
  }
  const tg_weight *weight_;
  Part now_ = {};
};

// Compact or in groups: unpacked when it is taken.
class UnpackedParts {
 public:
  Asking asking;

  UnpackedParts(const Linear &job, char *room) : weight_(job.weight), room_(room) {}
  TG_INLINE void take(const Part &part) {
    now_ = part;
    for (int64_t s = 0; s < part.panels; s++) {
      unpack_panel(weight_, part.panel + s, part.column * 32, part.columns * 32, room_ + s * kPartTiles * kTile);
    }
  }
  TG_INLINE const uint8_t *at(int s) const { return reinterpret_cast<const uint8_t *>(room_ + s * kPartTiles * kTile); }
  TG_INLINE void follow(const Part &next, int64_t pairs) {
    asking.begin(address(next, 0), address(next, 1), bytes(next.columns), pairs * now_.columns);
  }

 private:
  // About: heads and scales lie before or behind all values of a panel.
  TG_INLINE int64_t bytes(int64_t columns) const { return weight_->panel_bytes * columns * 32 / weight_->padded; }
  TG_INLINE const uint8_t *address(const Part &part, int64_t s) const {
    return s >= part.panels ? nullptr : weight_->values + (part.panel + s) * weight_->panel_bytes + bytes(part.column);
  }
  const tg_weight *weight_;
  char *room_;
  Part now_ = {};
};

}  // namespace tg::TG_ISA
#endif
