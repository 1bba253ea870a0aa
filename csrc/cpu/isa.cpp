#include "isa.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace pgk {
namespace {

#define PGK_TABLE(name)                                                                                       \
  {                                                                                                           \
    name::pack_rows, name::gather_packed, name::linear, name::rms_norm, name::gated_activation,               \
        name::rotate_and_write, name::paged_attention, name::most_likely, name::draw_tokens, name::keep_likely \
  }
const KernelTable kPortable = PGK_TABLE(portable);
#if defined(PGK_HAVE_AVX2)
const KernelTable kAvx2 = PGK_TABLE(avx2);
#endif
#if defined(PGK_HAVE_AVX512)
const KernelTable kAvx512 = PGK_TABLE(avx512);
#endif
#if defined(PGK_HAVE_AVX512_BF16)
const KernelTable kAvx512Bf16 = PGK_TABLE(avx512_bf16);
const KernelTable kAmxEmulated = PGK_TABLE(amx_emulated);
#endif
#if defined(PGK_HAVE_AMX_BF16)
const KernelTable kAmxBf16 = PGK_TABLE(amx_bf16);
#endif

struct Cpu {
  bool avx2 = false, avx512 = false, avx512_bf16 = false, amx_bf16 = false;
};

#if defined(__x86_64__)
uint64_t enabled_state() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

// Linux gives tile registers to a process that asks: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA).
bool may_use_tiles() {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

Cpu detect() {
  Cpu cpu;
  uint32_t a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_OSXSAVE) == 0) return cpu;
  const bool fma = (c & bit_FMA) != 0 && (c & bit_F16C) != 0;
  const uint64_t state = enabled_state();
  const bool ymm = (state & 0x6) == 0x6, zmm = (state & 0xe6) == 0xe6, tiles = (state & 0x60000) == 0x60000;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return cpu;
  cpu.avx2 = ymm && fma && (b & bit_AVX2) != 0;
  const uint32_t wanted = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
  cpu.avx512 = cpu.avx2 && zmm && (b & wanted) == wanted;
  constexpr uint32_t kAmxBf16Bit = 1u << 22, kAmxTileBit = 1u << 24, kAvx512Bf16Bit = 1u << 5;
  const bool amx = tiles && (d & kAmxBf16Bit) != 0 && (d & kAmxTileBit) != 0;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) cpu.avx512_bf16 = cpu.avx512 && (a & kAvx512Bf16Bit) != 0;
  cpu.amx_bf16 = cpu.avx512_bf16 && amx && may_use_tiles();
  return cpu;
}
#else
Cpu detect() { return Cpu(); }
#endif

const Cpu& cpu() {
  static const Cpu detected = detect();
  return detected;
}

// Packing has one form for all, so the choice may change at any time between calls.
std::atomic<int32_t> current{-1};

}  // namespace

const KernelTable* kernel_table(int32_t isa) {
  switch (isa) {
    case PGK_PORTABLE: return &kPortable;
#if defined(PGK_HAVE_AVX2)
    case PGK_AVX2: return &kAvx2;
#endif
#if defined(PGK_HAVE_AVX512)
    case PGK_AVX512: return &kAvx512;
#endif
#if defined(PGK_HAVE_AVX512_BF16)
    case PGK_AVX512_BF16: return &kAvx512Bf16;
    case PGK_AMX_EMULATED: return &kAmxEmulated;
#endif
#if defined(PGK_HAVE_AMX_BF16)
    case PGK_AMX_BF16: return &kAmxBf16;
#endif
    default: return nullptr;
  }
}

const char* isa_name(int32_t isa) {
  static const char* const names[PGK_NUM_ISAS] = {"portable",    "avx2",     "avx512",
                                                  "avx512_bf16", "amx_bf16", "amx_emulated"};
  return isa >= 0 && isa < PGK_NUM_ISAS ? names[isa] : nullptr;
}

bool isa_available(int32_t isa) {
  if (kernel_table(isa) == nullptr) return false;
  switch (isa) {
    case PGK_AVX2: return cpu().avx2;
    case PGK_AVX512: return cpu().avx512;
    case PGK_AVX512_BF16: case PGK_AMX_EMULATED: return cpu().avx512_bf16;
    case PGK_AMX_BF16: return cpu().amx_bf16;
    default: return true;
  }
}

int32_t isa_current() {
  int32_t isa = current.load(std::memory_order_relaxed);
  if (isa >= 0) return isa;
  for (isa = PGK_AMX_BF16; isa > PGK_PORTABLE && !isa_available(isa);) --isa;
  current.store(isa, std::memory_order_relaxed);
  return isa;
}

void isa_select(int32_t isa) { current.store(isa, std::memory_order_relaxed); }

}  // namespace pgk
