// Packing of weight rows, and reading rows back (a tied embedding).
#include "packing.h"

#include "pool.h"
#include "simd.h"
#include "tables.h"

namespace pgk {
namespace PGK_ISA {
namespace {

template <class T>
struct Packed {
  static constexpr int64_t kWidth = sizeof(T) == 2 ? 2 : 1;
  T* data;
  int64_t steps;

  // The first value of a packed row; the value of k lies (k / width) * stride() + k % width further.
  T* row(int64_t packed_row) const {
    return data + packed_row / kPanelRows * steps * stride() + packed_row % kPanelRows * kWidth;
  }
  static constexpr int64_t stride() { return kPanelRows * kWidth; }
};

template <class T>
Packed<T> packed_view(const void* data, int64_t k) {
  return Packed<T>{static_cast<T*>(const_cast<void*>(data)), padded_k(sizeof(T) == 2, k) / Packed<T>::kWidth};
}

PGK_INLINE void convert(float* to, float from) { *to = from; }
PGK_INLINE void convert(float* to, bf16 from) { *to = bf16_to_float(from); }
PGK_INLINE void convert(bf16* to, bf16 from) { *to = from; }
PGK_INLINE void convert(bf16* to, float from) { *to = float_to_bf16(from); }

template <class T, class From>
void pack_row(const Packed<T>& packed, int64_t place, const From* from, int64_t k) {
  constexpr int64_t kWidth = Packed<T>::kWidth;
  T* to = packed.row(place);
  const int64_t whole = k / kWidth;
  for (int64_t s = 0; s < whole; ++s)
    for (int64_t j = 0; j < kWidth; ++j) convert(to + s * Packed<T>::stride() + j, from[s * kWidth + j]);
  for (int64_t i = whole * kWidth; i < packed.steps * kWidth; ++i) {
    T* place_of = to + i / kWidth * Packed<T>::stride() + i % kWidth;
    if (i < k) {
      convert(place_of, from[i]);
    } else {
      *place_of = T(0);
    }
  }
}

template <class T, class From>
void pack_as(const PackArgs& args) {
  const Packed<T> packed = packed_view<T>(args.packed, args.k);
  const From* rows = static_cast<const From*>(args.rows);
  // Rows of one group of 16 share cache lines: one chunk packs whole groups.
  const int32_t chunks = static_cast<int32_t>(ceil_div(args.num_rows, kPanelRows));
  parallel_for(chunks, [&](int32_t chunk) {
    const int64_t end = min_of<int64_t>(args.num_rows, (chunk + 1) * kPanelRows);
    for (int64_t i = chunk * kPanelRows; i < end; ++i) {
      const int64_t place = packed_row(args.order == PGK_ROWS_GATE_UP, args.n, args.row_begin + i);
      pack_row(packed, place, rows + i * args.rows_stride, args.k);
    }
  });
}

template <class T, class To>
void gather_as(const GatherPackedArgs& args) {
  const Packed<T> packed = packed_view<T>(args.packed, args.k);
  constexpr int64_t kWidth = Packed<T>::kWidth;
  parallel_for(static_cast<int32_t>(ceil_div(args.num_ids, 4)), [&](int32_t chunk) {
    const int64_t end = min_of<int64_t>(args.num_ids, (chunk + 1) * 4);
    for (int64_t i = chunk * 4; i < end; ++i) {
      To* out = static_cast<To*>(args.out) + i * args.out_stride;
      const T* from = packed.row(packed_row(args.order == PGK_ROWS_GATE_UP, args.n, args.ids[i]));
      for (int64_t k = 0; k < args.k; ++k) convert(out + k, from[k / kWidth * Packed<T>::stride() + k % kWidth]);
    }
  });
}

}  // namespace

int32_t pack_rows(const PackArgs& args) {
  if (args.dtype == PGK_BF16) {
    args.rows_dtype == PGK_BF16 ? pack_as<bf16, bf16>(args) : pack_as<bf16, float>(args);
  } else {
    args.rows_dtype == PGK_BF16 ? pack_as<float, bf16>(args) : pack_as<float, float>(args);
  }
  return PGK_OK;
}

int32_t gather_packed(const GatherPackedArgs& args) {
  if (args.dtype == PGK_BF16) {
    args.out_dtype == PGK_BF16 ? gather_as<bf16, bf16>(args) : gather_as<bf16, float>(args);
  } else {
    args.out_dtype == PGK_BF16 ? gather_as<float, bf16>(args) : gather_as<float, float>(args);
  }
  return PGK_OK;
}

}  // namespace PGK_ISA
}  // namespace pgk
