// 16 float32 lanes as two AVX2 registers, with FMA.
#pragma once

#include <immintrin.h>

namespace pgk {
namespace PGK_ISA {

struct V {
  __m256 a, b;
};

PGK_INLINE V set1(float x) { return V{_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
PGK_INLINE V load(const float* p) { return V{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
PGK_INLINE V load_n(const float* p, int n) {
  alignas(32) float t[kLanes] = {};
  std::memcpy(t, p, static_cast<size_t>(n) * 4);
  return load(t);
}
PGK_INLINE void store(float* p, V v) {
  _mm256_storeu_ps(p, v.a);
  _mm256_storeu_ps(p + 8, v.b);
}
PGK_INLINE void store_n(float* p, V v, int n) {
  alignas(32) float t[kLanes];
  store(t, v);
  std::memcpy(p, t, static_cast<size_t>(n) * 4);
}
PGK_INLINE __m256 widen(__m128i half) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16)); }
PGK_INLINE V load_bf16(const bf16* p) {
  return V{widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
           widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
PGK_INLINE V load_bf16_n(const bf16* p, int n) {
  alignas(32) bf16 t[kLanes] = {};
  std::memcpy(t, p, static_cast<size_t>(n) * 2);
  return load_bf16(t);
}
PGK_INLINE __m256i rounded_high(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, quiet, is_nan);
}
PGK_INLINE void store_bf16(bf16* p, V v) {
  const __m256i packed = _mm256_packus_epi32(rounded_high(v.a), rounded_high(v.b));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
PGK_INLINE void store_bf16_n(bf16* p, V v, int n) {
  alignas(32) bf16 t[kLanes];
  store_bf16(t, v);
  std::memcpy(p, t, static_cast<size_t>(n) * 2);
}

PGK_INLINE V add(V x, V y) { return V{_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
PGK_INLINE V sub(V x, V y) { return V{_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
PGK_INLINE V mul(V x, V y) { return V{_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
PGK_INLINE V div(V x, V y) { return V{_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
PGK_INLINE V max(V x, V y) { return V{_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
PGK_INLINE V min(V x, V y) { return V{_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
PGK_INLINE V fma(V x, V y, V z) { return V{_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
PGK_INLINE V round_even(V x) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return V{_mm256_round_ps(x.a, kNearest), _mm256_round_ps(x.b, kNearest)};
}
PGK_INLINE __m256 pow2(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
PGK_INLINE V scale_by_pow2(V x, V n) { return V{_mm256_mul_ps(x.a, pow2(n.a)), _mm256_mul_ps(x.b, pow2(n.b))}; }
PGK_INLINE __m256 keep_half(__m256 v, __m256i index, int lo, int hi, __m256 fill) {
  const __m256i above = _mm256_cmpgt_epi32(index, _mm256_set1_epi32(lo - 1));
  const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), index);
  return _mm256_blendv_ps(fill, v, _mm256_castsi256_ps(_mm256_and_si256(above, below)));
}
// Lanes lo <= i < hi keep v, the others become `fill`.
PGK_INLINE V keep_range(V v, int lo, int hi, float fill) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256 other = _mm256_set1_ps(fill);
  return V{keep_half(v.a, index, lo, hi, other),
           keep_half(v.b, _mm256_add_epi32(index, _mm256_set1_epi32(8)), lo, hi, other)};
}
PGK_INLINE V select_less(V a, V b, V if_less, V otherwise) {
  return V{_mm256_blendv_ps(otherwise.a, if_less.a, _mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ)),
           _mm256_blendv_ps(otherwise.b, if_less.b, _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ))};
}
PGK_INLINE bool any_nan(V v) {
  return _mm256_movemask_ps(_mm256_or_ps(_mm256_cmp_ps(v.a, v.a, _CMP_UNORD_Q), _mm256_cmp_ps(v.b, v.b, _CMP_UNORD_Q))) != 0;
}
// The first lane equal to x, or 16.
PGK_INLINE int first_equal(V v, float x) {
  const __m256 wanted = _mm256_set1_ps(x);
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(v.a, wanted, _CMP_EQ_OQ));
  const int high = _mm256_movemask_ps(_mm256_cmp_ps(v.b, wanted, _CMP_EQ_OQ));
  return __builtin_ctz(static_cast<unsigned>(low | high << 8) | 0x10000u);
}
PGK_INLINE void store_int(int32_t* p, V v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_cvttps_epi32(v.a));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), _mm256_cvttps_epi32(v.b));
}
PGK_INLINE float sum_lanes(V v) {
  const __m256 eight = _mm256_add_ps(v.a, v.b);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}
PGK_INLINE float max_lanes(V v) {
  const __m256 eight = _mm256_max_ps(v.a, v.b);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}

// Dot products over pairs of bfloat16: a weight row holds 16 lanes of (even k, odd k).
struct W2 {
  V even, odd;
};
struct X2 {
  __m256 even, odd;
};
PGK_INLINE __m256 even_of(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
PGK_INLINE __m256 odd_of(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
PGK_INLINE W2 load_pairs(const bf16* p) {
  const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
  return W2{V{even_of(lo), even_of(hi)}, V{odd_of(lo), odd_of(hi)}};
}
PGK_INLINE W2 load_pairs_n(const bf16* p, int n) {
  alignas(32) bf16 t[2 * kLanes] = {};
  std::memcpy(t, p, static_cast<size_t>(n) * 4);
  return load_pairs(t);
}
PGK_INLINE X2 broadcast_pair(const bf16* p) {
  int32_t bits;
  std::memcpy(&bits, p, 4);
  const __m256i pairs = _mm256_set1_epi32(bits);
  return X2{even_of(pairs), odd_of(pairs)};
}
PGK_INLINE V dot2(V acc, X2 x, const W2& w) {
  acc.a = _mm256_fmadd_ps(x.even, w.even.a, acc.a);
  acc.b = _mm256_fmadd_ps(x.even, w.even.b, acc.b);
  acc.a = _mm256_fmadd_ps(x.odd, w.odd.a, acc.a);
  acc.b = _mm256_fmadd_ps(x.odd, w.odd.b, acc.b);
  return acc;
}
// Rows and panels whose sums fit the registers together.
constexpr int kMaxRows = 4;
constexpr int kMaxPanels = 1;

}  // namespace PGK_ISA
}  // namespace pgk
