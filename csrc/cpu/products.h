// Where an instruction set's products come from: AMX tiles for bfloat16 where they exist and fit, else dot.h.
#pragma once

#include "dot.h"
#if PGK_ISA_LEVEL >= 4
#include "tiles_amx.h"
#endif

namespace pgk {
namespace PGK_ISA {

PGK_INLINE void product_panels(const float* a, int64_t a_stride, int64_t rows, const float* const* panels, int num_panels,
                               int64_t step_stride, int64_t steps, float* c, int64_t c_stride) {
  dot_panels<float, false>(a, a_stride, rows, panels, num_panels, step_stride, steps, c, c_stride, Ahead());
}

PGK_INLINE void product_panels(const bf16* a, int64_t a_stride, int64_t rows, const bf16* const* panels, int num_panels,
                               int64_t step_stride, int64_t steps, float* c, int64_t c_stride) {
#if PGK_ISA_LEVEL >= 4
  if (steps % kTileSteps == 0) {
    tile_panels(a, a_stride, rows, panels, num_panels, step_stride, steps, c, c_stride, Ahead());
    return;
  }
#endif
  dot_panels<bf16, false>(a, a_stride, rows, panels, num_panels, step_stride, steps, c, c_stride, Ahead());
}

// The two groups of a packed panel of 32, whose steps are whole tiles by their packing.
PGK_INLINE void product_packed(const float* a, int64_t a_stride, int64_t rows, const float* panel, int64_t steps, float* c,
                               int64_t c_stride, Ahead ahead) {
  const float* groups[2] = {panel, panel + kLanes};
  dot_panels<float, true>(a, a_stride, rows, groups, 2, 2 * kLanes, steps, c, c_stride, ahead);
}

PGK_INLINE void product_packed(const bf16* a, int64_t a_stride, int64_t rows, const bf16* panel, int64_t steps, float* c,
                               int64_t c_stride, Ahead ahead) {
  const bf16* groups[2] = {panel, panel + 2 * kLanes};
#if PGK_ISA_LEVEL >= 4
  tile_panels(a, a_stride, rows, groups, 2, 4 * kLanes, steps, c, c_stride, ahead);
#else
  dot_panels<bf16, true>(a, a_stride, rows, groups, 2, 4 * kLanes, steps, c, c_stride, ahead);
#endif
}

// Row groups that a product of packed weights walks a panel for.
PGK_INLINE int64_t packed_row_groups(bool is_bf16, int64_t rows) {
#if PGK_ISA_LEVEL >= 4
  if (is_bf16) return ceil_div(rows, 2 * kTileMaxRows);
#endif
  (void)is_bf16;
  return row_groups(rows);
}

PGK_INLINE void product_segments(const float* a, int64_t a_stride, int64_t rows, const float* const* segments,
                                 int64_t segment_steps, int64_t steps, int64_t step_stride, int64_t columns, float* c,
                                 int64_t c_stride) {
  dot_segments(a, a_stride, rows, segments, segment_steps, steps, step_stride, columns, c, c_stride);
}

PGK_INLINE void product_segments(const bf16* a, int64_t a_stride, int64_t rows, const bf16* const* segments,
                                 int64_t segment_steps, int64_t steps, int64_t step_stride, int64_t columns, float* c,
                                 int64_t c_stride) {
#if PGK_ISA_LEVEL >= 4
  if (segment_steps % kTileSteps == 0 && steps % kTileSteps == 0 && columns % kLanes == 0) {
    tile_segments(a, a_stride, rows, segments, segment_steps, steps, step_stride, columns, c, c_stride);
    return;
  }
#endif
  dot_segments(a, a_stride, rows, segments, segment_steps, steps, step_stride, columns, c, c_stride);
}

}  // namespace PGK_ISA
}  // namespace pgk
