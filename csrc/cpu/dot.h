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

constexpr int kMaxPanels = 4;

template <class T, int kRows, int kPanels>
static void panels_kernel(const T* a, int64_t a_stride, const T* const* panels, int64_t step_stride, int64_t steps,
                          float* c, int64_t c_stride) {
  using S = Step<T>;
  V acc[kRows][kPanels];
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kPanels; ++p) acc[r][p] = set1(0.0f);
  const T* b[kPanels];
  for (int p = 0; p < kPanels; ++p) b[p] = panels[p];
  for (int64_t s = 0; s < steps; ++s) {
    typename S::B weights[kPanels];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) weights[p] = S::load_b(b[p] + s * step_stride);
#pragma GCC unroll 8
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
#pragma GCC unroll 8
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

// Rows are handled in equal groups of at most kMaxRows.
PGK_INLINE int next_rows(int64_t left) { return static_cast<int>(ceil_div(left, ceil_div(left, kMaxRows))); }

#define PGK_FOR_ROWS(rows, CALL) \
  switch (rows) {                \
    case 1: CALL(1); break;      \
    case 2: CALL(2); break;      \
    case 3: CALL(3); break;      \
    case 4: CALL(4); break;      \
    case 5: CALL((kMaxRows >= 5 ? 5 : 1)); break; \
    default: CALL((kMaxRows >= 6 ? 6 : 1)); break; \
  }

template <class T>
static void dot_panels(const T* a, int64_t a_stride, int64_t rows, const T* const* panels, int num_panels,
                       int64_t step_stride, int64_t steps, float* c, int64_t c_stride) {
  for (int64_t row = 0; row < rows;) {
    const int count = next_rows(rows - row);
    const T* from = a + row * a_stride;
    float* to = c + row * c_stride;
    int p = 0;
    for (; num_panels - p >= 4; p += 4) {
#define PGK_CALL(R) panels_kernel<T, R, 4>(from, a_stride, panels + p, step_stride, steps, to + p * kLanes, c_stride)
      PGK_FOR_ROWS(count, PGK_CALL)
#undef PGK_CALL
    }
    for (; num_panels - p >= 2; p += 2) {
#define PGK_CALL(R) panels_kernel<T, R, 2>(from, a_stride, panels + p, step_stride, steps, to + p * kLanes, c_stride)
      PGK_FOR_ROWS(count, PGK_CALL)
#undef PGK_CALL
    }
    for (; p < num_panels; ++p) {
#define PGK_CALL(R) panels_kernel<T, R, 1>(from, a_stride, panels + p, step_stride, steps, to + p * kLanes, c_stride)
      PGK_FOR_ROWS(count, PGK_CALL)
#undef PGK_CALL
    }
    row += count;
  }
}

template <class T>
static void dot_segments(const T* a, int64_t a_stride, int64_t rows, const T* const* segments, int64_t segment_steps,
                         int64_t steps, int64_t step_stride, int64_t columns, float* c, int64_t c_stride) {
  for (int64_t row = 0; row < rows;) {
    const int count = next_rows(rows - row);
    const T* from = a + row * a_stride;
    float* to = c + row * c_stride;
    int64_t done = 0;
    while (done < columns) {
      const int64_t left = columns - done;
      const int64_t at = done * Step<T>::kWidth;
#define PGK_SEGMENTS(R, P, TAIL, LANES)                                                                            \
  segments_kernel<T, R, P, TAIL>(from, a_stride, segments, segment_steps, steps, step_stride, at, to + done, c_stride, \
                                 LANES)
      if (left >= 64) {
#define PGK_CALL(R) PGK_SEGMENTS(R, 4, false, 0)
        PGK_FOR_ROWS(count, PGK_CALL)
#undef PGK_CALL
        done += 64;
      } else if (left >= 32) {
#define PGK_CALL(R) PGK_SEGMENTS(R, 2, false, 0)
        PGK_FOR_ROWS(count, PGK_CALL)
#undef PGK_CALL
        done += 32;
      } else if (left >= 16) {
#define PGK_CALL(R) PGK_SEGMENTS(R, 1, false, 0)
        PGK_FOR_ROWS(count, PGK_CALL)
#undef PGK_CALL
        done += 16;
      } else {
        const int lanes = static_cast<int>(left);
#define PGK_CALL(R) PGK_SEGMENTS(R, 1, true, lanes)
        PGK_FOR_ROWS(count, PGK_CALL)
#undef PGK_CALL
        done += left;
      }
#undef PGK_SEGMENTS
    }
    row += count;
  }
}

#undef PGK_FOR_ROWS

}  // namespace PGK_ISA
}  // namespace pgk
