// The one inner loop of the library: C[rows, 16 * panels] (+)= A[rows, k] . B, B in "panels" of 16 columns.
//
// B's k-th step (a pair of k for bfloat16, one k for float32) is a row of 16 lanes. Two ways to say where B lies:
//  - dot_panels: one pointer a panel, steps `step_stride` apart (matrix weights; keys, whose panels are 16 tokens);
//  - dot_segments: one pointer a segment of k, the panels of a step side by side (values, whose segments are blocks).
// Every output element is one chain of additions in the order of k, whatever the number of rows or panels handled
// together: a row's bits depend neither on the other rows nor on the blocking.
#pragma once

#include "simd.h"

namespace pgk {
namespace PGK_ISA {

// How a step of k is read for an element type.
template <class T>
struct Step;

template <>
struct Step<bf16> {
  static constexpr int kWidth = 2;  // values of k a step
  using B = W2;
  using A = X2;
  PGK_INLINE B load_b(const bf16* p) { return load_pairs(p); }
  PGK_INLINE B load_b(const bf16* p, int n) { return load_pairs_n(p, n); }
  PGK_INLINE A load_a(const bf16* p) { return broadcast_pair(p); }
  PGK_INLINE V accumulate(V acc, const A& a, const B& b) { return dot2(acc, a, b); }
};

template <>
struct Step<float> {
  static constexpr int kWidth = 1;
  using B = V;
  using A = V;
  PGK_INLINE B load_b(const float* p) { return load(p); }
  PGK_INLINE B load_b(const float* p, int n) { return load_n(p, n); }
  PGK_INLINE A load_a(const float* p) { return set1(*p); }
  PGK_INLINE V accumulate(V acc, const A& a, const B& b) { return fma(a, b, acc); }
};

// Memory that will be needed next, fetched into the second-level cache on the way: `bytes` further each step.
struct Ahead {
  const char* at = nullptr;
  int64_t bytes = 0;
};

template <class T, int kRows, int kPanels, bool kAhead>
static void panels_kernel(const T* a, int64_t a_stride, const T* const* panels, int64_t step_stride, int64_t steps,
                          float* c, int64_t c_stride, Ahead ahead) {
  using S = Step<T>;
  V acc[kRows][kPanels];
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kPanels; ++p) acc[r][p] = set1(0.0f);
  const T* b[kPanels];
  for (int p = 0; p < kPanels; ++p) b[p] = panels[p];
  for (int64_t s = 0; s < steps; ++s) {
    if (kAhead) {
      __builtin_prefetch(ahead.at + s * ahead.bytes, 0, 2);
      __builtin_prefetch(ahead.at + s * ahead.bytes + 64, 0, 2);
    }
    typename S::B weights[kPanels];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) weights[p] = S::load_b(b[p] + s * step_stride);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const typename S::A x = S::load_a(a + r * a_stride + s * S::kWidth);
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) acc[r][p] = S::accumulate(acc[r][p], x, weights[p]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kPanels; ++p) store(c + r * c_stride + p * kLanes, acc[r][p]);
}

// `tail` lanes of the last panel exist; the others are neither read nor written.
template <class T, int kRows, int kPanels, bool kTail>
static void segments_kernel(const T* a, int64_t a_stride, const T* const* segments, int64_t segment_steps, int64_t steps,
                            int64_t step_stride, int64_t column, float* c, int64_t c_stride, int tail) {
  using S = Step<T>;
  V acc[kRows][kPanels];
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kPanels; ++p) acc[r][p] = set1(0.0f);
  for (int64_t done = 0; done < steps; done += segment_steps) {
    const T* b = segments[done / segment_steps] + column;
    const int64_t count = min_of(segment_steps, steps - done);
    for (int64_t s = 0; s < count; ++s) {
      typename S::B values[kPanels];
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) {
        const T* from = b + s * step_stride + p * kLanes * S::kWidth;
        values[p] = kTail && p == kPanels - 1 ? S::load_b(from, tail) : S::load_b(from);
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const typename S::A x = S::load_a(a + r * a_stride + (done + s) * S::kWidth);
#pragma GCC unroll 8
        for (int p = 0; p < kPanels; ++p) acc[r][p] = S::accumulate(acc[r][p], x, values[p]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kPanels; ++p) {
      if (kTail && p == kPanels - 1) {
        store_n(c + r * c_stride + p * kLanes, acc[r][p], tail);
      } else {
        store(c + r * c_stride + p * kLanes, acc[r][p]);
      }
    }
}

// Rows are handled in groups as equal as can be, of at most kMaxRows.
PGK_INLINE int next_rows(int64_t left) { return static_cast<int>(ceil_div(left, ceil_div(left, kMaxRows))); }
PGK_INLINE int64_t row_groups(int64_t rows) { return ceil_div(rows, kMaxRows); }

// Calls `Kernel<rows>::run(arguments...)`, rows a constant.
template <template <int> class Kernel, class... Args>
PGK_INLINE void for_rows(int rows, Args... args) {
  switch (rows) {
    case 1: return Kernel<1>::run(args...);
    case 2: return Kernel<2>::run(args...);
    case 3: return Kernel<min_of(3, kMaxRows)>::run(args...);
    case 4: return Kernel<min_of(4, kMaxRows)>::run(args...);
    case 5: return Kernel<min_of(5, kMaxRows)>::run(args...);
    case 6: return Kernel<min_of(6, kMaxRows)>::run(args...);
    case 7: return Kernel<min_of(7, kMaxRows)>::run(args...);
    default: return Kernel<min_of(8, kMaxRows)>::run(args...);
  }
}

template <class T, int kPanels, bool kAhead>
struct Panels {
  template <int kRows>
  struct Kernel {
    PGK_INLINE void run(const T* a, int64_t a_stride, const T* const* panels, int64_t step_stride, int64_t steps,
                        float* c, int64_t c_stride, Ahead ahead) {
      panels_kernel<T, kRows, kPanels, kAhead>(a, a_stride, panels, step_stride, steps, c, c_stride, ahead);
    }
  };
};

template <class T, int kPanels, bool kTail>
struct Segments {
  template <int kRows>
  struct Kernel {
    PGK_INLINE void run(const T* a, int64_t a_stride, const T* const* segments, int64_t segment_steps, int64_t steps,
                        int64_t step_stride, int64_t column, float* c, int64_t c_stride, int tail) {
      segments_kernel<T, kRows, kPanels, kTail>(a, a_stride, segments, segment_steps, steps, step_stride, column, c,
                                                c_stride, tail);
    }
  };
};

template <class T, bool kAhead>
static void dot_panels(const T* a, int64_t a_stride, int64_t rows, const T* const* panels, int num_panels,
                       int64_t step_stride, int64_t steps, float* c, int64_t c_stride, Ahead ahead) {
  for (int64_t row = 0; row < rows;) {
    const int count = next_rows(rows - row);
    const T* from = a + row * a_stride;
    float* to = c + row * c_stride;
    int p = 0;
    for (; num_panels - p >= kMaxPanels; p += kMaxPanels)
      for_rows<Panels<T, kMaxPanels, kAhead>::template Kernel>(count, from, a_stride, panels + p, step_stride, steps,
                                                               to + p * kLanes, c_stride, ahead);
    for (; p < num_panels; ++p)
      for_rows<Panels<T, 1, kAhead>::template Kernel>(count, from, a_stride, panels + p, step_stride, steps,
                                                      to + p * kLanes, c_stride, ahead);
    if (kAhead) ahead.at += steps * ahead.bytes;
    row += count;
  }
}

template <class T>
static void dot_segments(const T* a, int64_t a_stride, int64_t rows, const T* const* segments, int64_t segment_steps,
                         int64_t steps, int64_t step_stride, int64_t columns, float* c, int64_t c_stride) {
  constexpr int64_t kWide = kMaxPanels * kLanes;
  for (int64_t row = 0; row < rows;) {
    const int count = next_rows(rows - row);
    const T* from = a + row * a_stride;
    float* to = c + row * c_stride;
    int64_t done = 0;
    for (; columns - done >= kWide; done += kWide)
      for_rows<Segments<T, kMaxPanels, false>::template Kernel>(count, from, a_stride, segments, segment_steps, steps,
                                                                step_stride, done * Step<T>::kWidth, to + done, c_stride,
                                                                0);
    for (; columns - done >= kLanes; done += kLanes)
      for_rows<Segments<T, 1, false>::template Kernel>(count, from, a_stride, segments, segment_steps, steps, step_stride,
                                                       done * Step<T>::kWidth, to + done, c_stride, 0);
    if (done < columns)
      for_rows<Segments<T, 1, true>::template Kernel>(count, from, a_stride, segments, segment_steps, steps, step_stride,
                                                      done * Step<T>::kWidth, to + done, c_stride,
                                                      static_cast<int>(columns - done));
    row += count;
  }
}

}  // namespace PGK_ISA
}  // namespace pgk
