// 16 float32 lanes as a plain array: any processor; compilers vectorise the loops with what the base target has.
#pragma once

namespace pgk {
namespace PGK_ISA {

struct V {
  float lane[kLanes];
};

#define PGK_EACH for (int i = 0; i < kLanes; ++i)

PGK_INLINE V set1(float x) {
  V r;
  PGK_EACH r.lane[i] = x;
  return r;
}
PGK_INLINE V load(const float* p) {
  V r;
  std::memcpy(r.lane, p, sizeof(r.lane));
  return r;
}
PGK_INLINE V load_n(const float* p, int n) {
  V r = set1(0.0f);
  for (int i = 0; i < n; ++i) r.lane[i] = p[i];
  return r;
}
PGK_INLINE void store(float* p, V v) { std::memcpy(p, v.lane, sizeof(v.lane)); }
PGK_INLINE void store_n(float* p, V v, int n) {
  for (int i = 0; i < n; ++i) p[i] = v.lane[i];
}
PGK_INLINE V load_bf16(const bf16* p) {
  V r;
  PGK_EACH r.lane[i] = bf16_to_float(p[i]);
  return r;
}
PGK_INLINE V load_bf16_n(const bf16* p, int n) {
  V r = set1(0.0f);
  for (int i = 0; i < n; ++i) r.lane[i] = bf16_to_float(p[i]);
  return r;
}
PGK_INLINE void store_bf16(bf16* p, V v) { PGK_EACH p[i] = float_to_bf16(v.lane[i]); }
PGK_INLINE void store_bf16_n(bf16* p, V v, int n) {
  for (int i = 0; i < n; ++i) p[i] = float_to_bf16(v.lane[i]);
}

#define PGK_BINARY(name, expression)     \
  PGK_INLINE V name(V a, V b) {          \
    V r;                                 \
    PGK_EACH r.lane[i] = (expression);   \
    return r;                            \
  }
PGK_BINARY(add, a.lane[i] + b.lane[i])
PGK_BINARY(sub, a.lane[i] - b.lane[i])
PGK_BINARY(mul, a.lane[i] * b.lane[i])
PGK_BINARY(div, a.lane[i] / b.lane[i])
PGK_BINARY(max, a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i])
PGK_BINARY(min, a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i])
#undef PGK_BINARY

PGK_INLINE V fma(V a, V b, V c) {
  V r;
  PGK_EACH r.lane[i] = a.lane[i] * b.lane[i] + c.lane[i];
  return r;
}
PGK_INLINE V round_even(V a) {
  // Adding and taking away 1.5 * 2^23 rounds to the nearest whole number for |a| < 2^22.
  V r;
  PGK_EACH {
    volatile float shifted = a.lane[i] + 12582912.0f;
    r.lane[i] = shifted - 12582912.0f;
  }
  return r;
}
PGK_INLINE V scale_by_pow2(V a, V n) {
  V r;
  PGK_EACH r.lane[i] = a.lane[i] * bits_to_float(static_cast<uint32_t>((static_cast<int32_t>(n.lane[i]) + 127)) << 23);
  return r;
}
// Lanes lo <= i < hi keep v, the others become `fill`.
PGK_INLINE V keep_range(V v, int lo, int hi, float fill) {
  V r;
  PGK_EACH r.lane[i] = (i >= lo && i < hi) ? v.lane[i] : fill;
  return r;
}
PGK_INLINE V select_less(V a, V b, V if_less, V otherwise) {
  V r;
  PGK_EACH r.lane[i] = a.lane[i] < b.lane[i] ? if_less.lane[i] : otherwise.lane[i];
  return r;
}
PGK_INLINE bool any_nan(V v) {
  bool found = false;
  PGK_EACH found |= v.lane[i] != v.lane[i];
  return found;
}
// The first lane equal to x, or 16.
PGK_INLINE int first_equal(V v, float x) {
  PGK_EACH if (v.lane[i] == x) return i;
  return kLanes;
}
PGK_INLINE void store_int(int32_t* p, V v) { PGK_EACH p[i] = static_cast<int32_t>(v.lane[i]); }
PGK_INLINE float sum_lanes(V v) {
  float part[8];
  for (int i = 0; i < 8; ++i) part[i] = v.lane[i] + v.lane[i + 8];
  for (int i = 0; i < 4; ++i) part[i] += part[i + 4];
  return (part[0] + part[2]) + (part[1] + part[3]);
}
PGK_INLINE float max_lanes(V v) {
  float r = v.lane[0];
  for (int i = 1; i < kLanes; ++i) r = v.lane[i] > r ? v.lane[i] : r;
  return r;
}

// Dot products over pairs of bfloat16: a weight row holds 16 lanes of (even k, odd k).
struct W2 {
  V even, odd;
};
struct X2 {
  float even, odd;
};
PGK_INLINE W2 load_pairs(const bf16* p) {
  W2 w;
  PGK_EACH {
    w.even.lane[i] = bf16_to_float(p[2 * i]);
    w.odd.lane[i] = bf16_to_float(p[2 * i + 1]);
  }
  return w;
}
PGK_INLINE W2 load_pairs_n(const bf16* p, int n) {
  W2 w{set1(0.0f), set1(0.0f)};
  for (int i = 0; i < n; ++i) {
    w.even.lane[i] = bf16_to_float(p[2 * i]);
    w.odd.lane[i] = bf16_to_float(p[2 * i + 1]);
  }
  return w;
}
PGK_INLINE X2 broadcast_pair(const bf16* p) { return X2{bf16_to_float(p[0]), bf16_to_float(p[1])}; }
PGK_INLINE V dot2(V acc, X2 x, const W2& w) {
  PGK_EACH acc.lane[i] = acc.lane[i] + x.even * w.even.lane[i] + x.odd * w.odd.lane[i];
  return acc;
}
#undef PGK_EACH
constexpr int kMaxRows = 4;
constexpr int kMaxPanels = 1;

}  // namespace PGK_ISA
}  // namespace pgk
