// The vector vocabulary of one instruction set, chosen by the compile definition PGK_ISA_LEVEL
// (0 portable, 1 AVX2, 2 AVX-512, 3 AVX-512 with BF16, 4 the same with AMX tiles, 5 AMX tiles emulated).
//
// Kernels are written once over `V` (16 float32 lanes) and compiled once an instruction set into their own
// namespace; nothing from here may be a plain inline function outside that namespace, since the linker would then
// pick one instruction set's copy for all.
#pragma once

#include <cstdint>
#include <cstring>

#if PGK_ISA_LEVEL == 0
#define PGK_ISA portable
#elif PGK_ISA_LEVEL == 1
#define PGK_ISA avx2
#elif PGK_ISA_LEVEL == 2
#define PGK_ISA avx512
#elif PGK_ISA_LEVEL == 3
#define PGK_ISA avx512_bf16
#elif PGK_ISA_LEVEL == 4
#define PGK_ISA amx_bf16
#else
#define PGK_ISA amx_emulated
#endif

#define PGK_INLINE static inline __attribute__((always_inline))

namespace pgk {
namespace PGK_ISA {

constexpr int kLanes = 16;
using bf16 = uint16_t;

template <class T>
PGK_INLINE constexpr T min_of(T a, T b) {
  return a < b ? a : b;
}
template <class T>
PGK_INLINE constexpr T max_of(T a, T b) {
  return a > b ? a : b;
}
PGK_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

PGK_INLINE float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
PGK_INLINE uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
PGK_INLINE float bf16_to_float(bf16 value) { return bits_to_float(static_cast<uint32_t>(value) << 16); }
PGK_INLINE bf16 float_to_bf16(float value) {
  const uint32_t bits = float_to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<bf16>((bits >> 16) | 0x40);  // keep a NaN a NaN
  return static_cast<bf16>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

}  // namespace PGK_ISA
}  // namespace pgk

#if PGK_ISA_LEVEL == 0
#include "simd_portable.h"
#elif PGK_ISA_LEVEL == 1
#include "simd_avx2.h"
#else
#include "simd_avx512.h"
#endif

namespace pgk {
namespace PGK_ISA {

// Loads and stores of a tensor's own element type, whole vectors or the first n lanes (n >= 16 means whole: masked
// stores cost much more than the branch on some processors).
PGK_INLINE V load_as(const float* p) { return load(p); }
PGK_INLINE V load_as(const bf16* p) { return load_bf16(p); }
PGK_INLINE V load_as(const float* p, int64_t n) { return n >= kLanes ? load(p) : load_n(p, static_cast<int>(n)); }
PGK_INLINE V load_as(const bf16* p, int64_t n) { return n >= kLanes ? load_bf16(p) : load_bf16_n(p, static_cast<int>(n)); }
PGK_INLINE void store_as(float* p, V v) { store(p, v); }
PGK_INLINE void store_as(bf16* p, V v) { store_bf16(p, v); }
PGK_INLINE void store_as(float* p, V v, int64_t n) { n >= kLanes ? store(p, v) : store_n(p, v, static_cast<int>(n)); }
PGK_INLINE void store_as(bf16* p, V v, int64_t n) {
  n >= kLanes ? store_bf16(p, v) : store_bf16_n(p, v, static_cast<int>(n));
}

// 2^x; 0 below x = -126. Relative error under 2e-7: x = n + r, |r| <= 1/2, and a degree-6
// Taylor polynomial of 2^r (coefficients ln2^i / i!).
PGK_INLINE V exp2(V exponent) {
  V x = exponent;
  x = max(set1(-127.0f), x);  // in this order a NaN stays a NaN
  x = min(set1(127.0f), x);
  const V n = round_even(x);
  const V r = sub(x, n);
  V p = set1(1.5403530e-4f);
  p = fma(p, r, set1(1.3333558e-3f));
  p = fma(p, r, set1(9.6181291e-3f));
  p = fma(p, r, set1(5.5504109e-2f));
  p = fma(p, r, set1(2.4022651e-1f));
  p = fma(p, r, set1(6.9314718e-1f));
  p = fma(p, r, set1(1.0f));
  return select_less(exponent, set1(-126.0f), set1(0.0f), scale_by_pow2(p, n));
}
constexpr float kLog2E = 1.4426950408889634f;
PGK_INLINE V exp(V x) { return exp2(mul(x, set1(kLog2E))); }
// 1 - 2 / (e^2x + 1): absolute error about 1e-7 everywhere.
PGK_INLINE V tanh(V x) {
  const V e = exp2(mul(x, set1(2.0f * kLog2E)));
  return sub(set1(1.0f), div(set1(2.0f), add(e, set1(1.0f))));
}
PGK_INLINE V silu(V x) { return div(x, add(set1(1.0f), exp(sub(set1(0.0f), x)))); }
// x / 2 (1 + tanh(y)) = x / (1 + e^-2y), y = sqrt(2 / pi) (x + 0.044715 x^3): no cancellation for negative x.
PGK_INLINE V gelu_tanh(V x) {
  const V minus_two_y = mul(mul(x, set1(-1.5957691216f)), fma(mul(x, x), set1(0.044715f), set1(1.0f)));
  return div(x, add(set1(1.0f), exp(minus_two_y)));
}

}  // namespace PGK_ISA
}  // namespace pgk
