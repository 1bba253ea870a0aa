// The packed form of a weight, shared by packing, gathering and the products.
//
// Weight rows (outputs) go in groups of 16 lanes, two groups a panel of 32. For bfloat16 a step holds two values of k:
// panel[step][group][lane][2]; for float32 panel[step][group][lane]. k is padded with zeros to a multiple of 32
// (bfloat16) and n to a multiple of 32. The same bytes feed vdpbf16ps and, as they stand, AMX tiles.
#pragma once

#include <cstdint>

namespace pgk {

constexpr int64_t kPanelRows = 32;
constexpr int64_t kGroupRows = 16;
constexpr int64_t kStepAlign = 32;

inline int64_t padded_k(bool is_bf16, int64_t k) {
  return is_bf16 ? (k + kStepAlign - 1) / kStepAlign * kStepAlign : k;
}
inline int64_t num_panels(int64_t n) { return (n + kPanelRows - 1) / kPanelRows; }

// The place of a weight row among the packed rows: unchanged, or gate (first half) and up rows in alternating groups.
inline int64_t packed_row(bool is_gate_up, int64_t n, int64_t row) {
  if (!is_gate_up) return row;
  const int64_t half = n / 2;
  const bool is_up = row >= half;
  const int64_t index = is_up ? row - half : row;
  return index / kGroupRows * kPanelRows + (is_up ? kGroupRows : 0) + index % kGroupRows;
}
// Packed rows, padding included: gate and up are padded each by itself.
inline int64_t packed_rows(bool is_gate_up, int64_t n) {
  return is_gate_up ? (n / 2 + kGroupRows - 1) / kGroupRows * kPanelRows : num_panels(n) * kPanelRows;
}

}  // namespace pgk
