// 16 float32 lanes as one AVX-512 register (F, BW, DQ, VL); levels 3 and up use the bfloat16 dot product.
#pragma once

#include <immintrin.h>

namespace pgk {
namespace PGK_ISA {

struct V {
  __m512 v;
};

PGK_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1); }
PGK_INLINE V set1(float x) { return V{_mm512_set1_ps(x)}; }
PGK_INLINE V load(const float* p) { return V{_mm512_loadu_ps(p)}; }
PGK_INLINE V load_n(const float* p, int n) { return V{_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
PGK_INLINE void store(float* p, V x) { _mm512_storeu_ps(p, x.v); }
PGK_INLINE void store_n(float* p, V x, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), x.v); }
PGK_INLINE V widen(__m256i half) { return V{_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))}; }
PGK_INLINE V load_bf16(const bf16* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
PGK_INLINE V load_bf16_n(const bf16* p, int n) { return widen(_mm256_maskz_loadu_epi16(first_lanes(n), p)); }
PGK_INLINE __m256i narrow(V x) {
#if PGK_ISA_LEVEL >= 3
  const __m256bh packed = _mm512_cvtneps_pbh(x.v);
  __m256i bits;
  std::memcpy(&bits, &packed, sizeof(bits));
  return bits;
#else
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i high = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  high = _mm512_mask_or_epi32(high, is_nan, _mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  return _mm512_cvtepi32_epi16(high);
#endif
}
PGK_INLINE void store_bf16(bf16* p, V x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x)); }
PGK_INLINE void store_bf16_n(bf16* p, V x, int n) { _mm256_mask_storeu_epi16(p, first_lanes(n), narrow(x)); }

PGK_INLINE V add(V x, V y) { return V{_mm512_add_ps(x.v, y.v)}; }
PGK_INLINE V sub(V x, V y) { return V{_mm512_sub_ps(x.v, y.v)}; }
PGK_INLINE V mul(V x, V y) { return V{_mm512_mul_ps(x.v, y.v)}; }
PGK_INLINE V div(V x, V y) { return V{_mm512_div_ps(x.v, y.v)}; }
PGK_INLINE V max(V x, V y) { return V{_mm512_max_ps(x.v, y.v)}; }
PGK_INLINE V min(V x, V y) { return V{_mm512_min_ps(x.v, y.v)}; }
PGK_INLINE V fma(V x, V y, V z) { return V{_mm512_fmadd_ps(x.v, y.v, z.v)}; }
PGK_INLINE V round_even(V x) {
  return V{_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
PGK_INLINE V scale_by_pow2(V x, V n) { return V{_mm512_scalef_ps(x.v, n.v)}; }
// Lanes lo <= i < hi keep v, the others become `fill`.
PGK_INLINE V keep_range(V x, int lo, int hi, float fill) {
  const uint32_t below = hi >= kLanes ? 0xffffu : (hi <= 0 ? 0u : (1u << hi) - 1);
  const uint32_t under = lo >= kLanes ? 0xffffu : (lo <= 0 ? 0u : (1u << lo) - 1);
  return V{_mm512_mask_blend_ps(static_cast<__mmask16>(below & ~under), _mm512_set1_ps(fill), x.v)};
}
PGK_INLINE V select_less(V a, V b, V if_less, V otherwise) {
  return V{_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), otherwise.v, if_less.v)};
}
PGK_INLINE bool any_nan(V x) { return _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q) != 0; }
// The first lane equal to x, or 16.
PGK_INLINE int first_equal(V v, float x) {
  return __builtin_ctz(_mm512_cmp_ps_mask(v.v, _mm512_set1_ps(x), _CMP_EQ_OQ) | 0x10000u);
}
PGK_INLINE void store_int(int32_t* p, V x) { _mm512_storeu_si512(p, _mm512_cvttps_epi32(x.v)); }
PGK_INLINE float sum_lanes(V x) { return _mm512_reduce_add_ps(x.v); }
PGK_INLINE float max_lanes(V x) { return _mm512_reduce_max_ps(x.v); }

// Dot products over pairs of bfloat16: a weight row holds 16 lanes of (even k, odd k).
#if PGK_ISA_LEVEL >= 3
using W2 = __m512i;
using X2 = __m512i;
PGK_INLINE W2 load_pairs(const bf16* p) { return _mm512_loadu_si512(p); }
PGK_INLINE W2 load_pairs_n(const bf16* p, int n) { return _mm512_maskz_loadu_epi32(first_lanes(n), p); }
PGK_INLINE X2 broadcast_pair(const bf16* p) {
  int32_t bits;
  std::memcpy(&bits, p, 4);
  return _mm512_set1_epi32(bits);
}
PGK_INLINE V dot2(V acc, X2 x, W2 w) {
  return V{_mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(w))};
}
#else
struct W2 {
  __m512 even, odd;
};
using X2 = W2;
PGK_INLINE W2 split(__m512i pairs) {
  return W2{_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
PGK_INLINE W2 load_pairs(const bf16* p) { return split(_mm512_loadu_si512(p)); }
PGK_INLINE W2 load_pairs_n(const bf16* p, int n) { return split(_mm512_maskz_loadu_epi32(first_lanes(n), p)); }
PGK_INLINE X2 broadcast_pair(const bf16* p) {
  int32_t bits;
  std::memcpy(&bits, p, 4);
  return split(_mm512_set1_epi32(bits));
}
PGK_INLINE V dot2(V acc, X2 x, W2 w) {
  acc.v = _mm512_fmadd_ps(x.even, w.even, acc.v);
  acc.v = _mm512_fmadd_ps(x.odd, w.odd, acc.v);
  return acc;
}
#endif
// Rows and panels whose sums fit the registers together.
constexpr int kMaxRows = 8;
constexpr int kMaxPanels = 2;

}  // namespace PGK_ISA
}  // namespace pgk
