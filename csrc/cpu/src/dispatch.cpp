// Which kernels this machine can run, and the table of functions for each.
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "plan.h"
#include "pool.h"
#include "room.h"
#include "weight.h"

namespace tg {

#if defined(TG_HAS_AMX)
namespace amx {
const Kernel *kernel_of(int32_t kind);
}
#endif
#if defined(TG_HAS_AVX512)
namespace avx512 {
const Kernel *kernel_of(int32_t kind);
}
#endif
#if defined(TG_HAS_AVX512VNNI)
namespace avx512vnni {
const Kernel *kernel_of(int32_t kind);
}
#endif
#if defined(TG_HAS_AVXVNNI)
namespace avxvnni {
const Kernel *kernel_of(int32_t kind);
}
#endif
#if defined(TG_HAS_AVX2)
namespace avx2 {
const Kernel *kernel_of(int32_t kind);
}
#endif
#if defined(TG_HAS_NEON)
namespace neon {
const Kernel *kernel_of(int32_t kind);
}
#endif
namespace portable {
const Kernel *kernel_of(int32_t kind);
}

namespace {

#if defined(__x86_64__)
struct Features {
  bool avx2 = false, avxvnni = false, avx512vnni = false, avx512 = false, amx = false;
  bool reads_many = true;   // many streams of reads at once are faster than two
  bool reads_on = true;     // the processor itself asks for what lies between lines that are asked for
  bool slow_pairs = false;  // a product of pairs in bfloat16 takes longer than the two of float32 that it stands for
};

uint64_t saved_state() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

// The kernel keeps AMX tiles only for a process that asked for them.
bool tiles_allowed() {
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

Features detect() {
  Features found;
  uint32_t a, b, c, d;
  if (__get_cpuid(0, &a, &b, &c, &d) == 0) return found;
  constexpr uint32_t kIntel = 0x756e6547, kAmd = 0x68747541;  // "Genu", "Auth"; what follows from it was measured (docs/cpu.md)
  found.slow_pairs = b == kIntel;
  found.reads_on = b != kIntel;
  const bool amd = b == kAmd;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return found;
  constexpr uint32_t kZen5 = 0x1a;  // the family
  found.reads_many = !amd || (a >> 8 & 0xf) + (a >> 20 & 0xff) < kZen5;
  constexpr uint32_t kFma = 1u << 12, kOsxsave = 1u << 27, kF16c = 1u << 29;
  if ((c & kFma) == 0 || (c & kOsxsave) == 0 || (c & kF16c) == 0) return found;
  const uint64_t state = saved_state();
  if ((state & 6) != 6 || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return found;
  found.avx2 = (b >> 5 & 1) != 0;
  const uint32_t tiles = d >> 22 & 1, tile = d >> 24 & 1, tile_int8 = d >> 25 & 1;
  constexpr uint32_t kWide = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // AVX-512 F, DQ, BW, VL
  const bool wide = (b & kWide) == kWide && (c >> 11 & 1) != 0;            // and VNNI
  uint32_t a1 = 0, b1, c1, d1;
  const bool more = __get_cpuid_count(7, 1, &a1, &b1, &c1, &d1) != 0;
  const bool bf16 = more && (a1 >> 5 & 1) != 0;
  found.avxvnni = found.avx2 && more && (a1 >> 4 & 1) != 0;
#if defined(TG_EMULATED_VNNI)
  found.avxvnni = found.avx2;
#endif
  found.avx512vnni = found.avx2 && wide && (state & 0xe6) == 0xe6;
  found.avx512 = found.avx512vnni && bf16;
#if defined(TG_EMULATED_TILES)
  found.amx = found.avx512;
  return found;
#endif
  found.amx = found.avx512 && tiles != 0 && tile != 0 && tile_int8 != 0 && (state >> 17 & 3) == 3 && tiles_allowed();
  return found;
}
#endif

#if defined(TG_HAS_NEON)
// What the set is compiled for beyond what every such processor has: products of bytes, and arithmetic in half precision.
bool dot_products() {
  constexpr unsigned long kNeeded = HWCAP_ASIMDDP | HWCAP_ASIMDHP | HWCAP_FPHP;
  return (getauxval(AT_HWCAP) & kNeeded) == kNeeded;
}
#endif

template <KernelTable table>
tg_plan *create(tg_pool *pool, const tg_plan_options *options) {
  return plan_create(table, pool, options);
}

template <KernelTable table>
constexpr tg_api api_of(const char *isa) {
  return {TG_ABI,      sizeof(tg_api), isa,          get_error,      pool_create,   pool_destroy, weight_create,
          weight_pack, weight_bytes,   weight_destroy, create<table>, plan_run, plan_follow, plan_profile, plan_destroy, weight_memory, weight_map,
          weight_widen};
}

struct Entry {
  tg_api api;
  bool (*usable)();
};

#if defined(__x86_64__)
const Features &features() {
  static Features found;
  static bool known = false;  // two threads at once find the same
  if (!__atomic_load_n(&known, __ATOMIC_ACQUIRE)) {
    found = detect();
    __atomic_store_n(&known, true, __ATOMIC_RELEASE);
  }
  return found;
}
#endif

const Entry entries[] = {
#if defined(TG_HAS_AMX)
    {api_of<amx::kernel_of>("amx"), [] { return features().amx; }},
#endif
#if defined(TG_HAS_AVX512)
    {api_of<avx512::kernel_of>("avx512"), [] { return features().avx512; }},
#endif
#if defined(TG_HAS_AVX512VNNI)
    {api_of<avx512vnni::kernel_of>("avx512vnni"), [] { return features().avx512vnni; }},
#endif
#if defined(TG_HAS_AVXVNNI)
    {api_of<avxvnni::kernel_of>("avxvnni"), [] { return features().avxvnni; }},
#endif
#if defined(TG_HAS_AVX2)
    {api_of<avx2::kernel_of>("avx2"), [] { return features().avx2; }},
#endif
#if defined(TG_HAS_NEON)
    {api_of<neon::kernel_of>("neon"), [] { return dot_products(); }},
#endif
    {api_of<portable::kernel_of>("portable"), [] { return true; }},
};

}  // namespace

bool reads_many() {
#if defined(__x86_64__)
  return features().reads_many;
#else
  return true;
#endif
}

bool reads_on() {
#if defined(__x86_64__)
  return features().reads_on;
#else
  return true;
#endif
}

bool slow_pairs() {
#if defined(__x86_64__)
  return features().slow_pairs;
#else
  return false;
#endif
}

}  // namespace tg

extern "C" __attribute__((visibility("default"))) const tg_api *tg_cpu_api(const char *isa) {
  for (const tg::Entry &entry : tg::entries) {
    if ((isa == nullptr || strcmp(isa, entry.api.isa) == 0) && entry.usable()) return &entry.api;
  }
  return nullptr;
}

extern "C" __attribute__((visibility("default"))) const char *tg_cpu_isas(void) {
  static char names[64];
  char list[64] = "";
  for (const tg::Entry &entry : tg::entries) {
    if (!entry.usable()) continue;
    if (list[0] != 0) strcat(list, ",");
    strcat(list, entry.api.isa);
  }
  memcpy(names, list, sizeof names);  // always the same bytes
  return names;
}

extern "C" __attribute__((visibility("default"))) void tg_cpu_reserve(int64_t bytes) { tg::room_reserve(bytes); }
extern "C" __attribute__((visibility("default"))) void *tg_cpu_room(int64_t bytes) {
  return bytes > 0 && bytes <= INT64_MAX / 2 ? tg::room_create(bytes) : nullptr;
}
extern "C" __attribute__((visibility("default"))) void tg_cpu_leave(void *room, int64_t bytes) { tg::room_destroy(room, bytes); }
