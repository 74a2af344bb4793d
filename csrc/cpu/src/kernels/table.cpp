// Which kernel runs which kind of operation. A new kernel is declared in kernel.h and entered here.
#include "../kernel.h"

namespace tg::TG_ISA {

const Kernel *kernel_of(int32_t kind) {
  switch (kind) {
    case TG_LINEAR: return &linear;
    case TG_EMBED: return &embed;
    case TG_NORM: return &norm;
    case TG_ADD_ROWS: return &add_rows;
    case TG_ROPE_TABLE: return &rope_table;
    case TG_ROPE_WRITE: return &rope_write;
    case TG_ATTENTION: return &attention;
    case TG_ACTIVATE: return &activate;
    case TG_ACTIVATE_GATED: return &activate_gated;
    case TG_CLAMP: return &clamp;
    case TG_SCALE: return &scale;
    case TG_GATHER_ROWS: return &gather_rows;
    case TG_EXPERTS: return &experts;
    case TG_ARGMAX: return &argmax;
    case TG_DRAW: return &draw;
    case TG_MOVE: return &move;
    case TG_ROUTE: return &route;
    case TG_SWITCH: return &toggle;
    case TG_PICK: return &pick;
    default: return nullptr;
  }
}

}  // namespace tg::TG_ISA
