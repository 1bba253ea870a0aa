// RMS norm, alone or after adding the residual: out = x / sqrt(mean(x^2) + eps) * (weight + offset).
#include "pool.h"
#include "simd.h"
#include "tables.h"

namespace pgk {
namespace PGK_ISA {
namespace {

template <class T, class W>
void norm_row(const NormArgs& args, int64_t row) {
  const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
  const W* weight = static_cast<const W*>(args.weight);
  T* out = static_cast<T*>(args.out) + row * args.out_stride;
  V squares = set1(0.0f);
  if (args.residual != nullptr) {
    T* residual = static_cast<T*>(args.residual) + row * args.residual_stride;
    for (int64_t c = 0; c < args.cols; c += kLanes) {
      const int64_t lanes = args.cols - c;
      store_as(residual + c, add(load_as(x + c, lanes), load_as(residual + c, lanes)), lanes);
      const V rounded = load_as(residual + c, lanes);  // the norm sees what the next layer will see
      squares = fma(rounded, rounded, squares);
    }
    x = residual;
  } else {
    for (int64_t c = 0; c < args.cols; c += kLanes) {
      const V value = load_as(x + c, args.cols - c);
      squares = fma(value, value, squares);
    }
  }
  const float mean = sum_lanes(squares) / static_cast<float>(args.cols);
  const V scale = set1(1.0f / __builtin_sqrtf(mean + args.eps));
  const V offset = set1(args.weight_offset);
  for (int64_t c = 0; c < args.cols; c += kLanes) {
    const int64_t lanes = args.cols - c;
    const V factor = weight == nullptr ? set1(1.0f) : add(load_as(weight + c, lanes), offset);
    store_as(out + c, mul(mul(load_as(x + c, lanes), scale), factor), lanes);
  }
}

template <class T, class W>
void norm_rows(const NormArgs& args) {
  const int64_t rows = max_of<int64_t>(1, 16384 / max_of<int64_t>(1, args.cols));
  parallel_for(static_cast<int32_t>(ceil_div(args.rows, rows)), [&](int32_t chunk) {
    const int64_t end = min_of(args.rows, (chunk + 1) * rows);
    for (int64_t row = chunk * rows; row < end; ++row) norm_row<T, W>(args, row);
  });
}

}  // namespace

int32_t rms_norm(const NormArgs& args) {
  if (args.dtype == PGK_BF16) {
    args.weight_dtype == PGK_BF16 ? norm_rows<bf16, bf16>(args) : norm_rows<bf16, float>(args);
  } else {
    args.weight_dtype == PGK_BF16 ? norm_rows<float, bf16>(args) : norm_rows<float, float>(args);
  }
  return PGK_OK;
}

}  // namespace PGK_ISA
}  // namespace pgk
