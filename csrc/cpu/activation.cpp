// Gated activations over rows [gate | up]: out = act(gate) * up.
#include "pool.h"
#include "simd.h"
#include "tables.h"

namespace pgk {
namespace PGK_ISA {
namespace {

template <class T>
void activate(const ActivationArgs& args) {
  const int64_t rows = max_of<int64_t>(1, 8192 / max_of<int64_t>(1, args.cols));
  parallel_for(static_cast<int32_t>(ceil_div(args.rows, rows)), [&](int32_t chunk) {
    const int64_t end = min_of(args.rows, (chunk + 1) * rows);
    for (int64_t row = chunk * rows; row < end; ++row) {
      const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
      T* out = static_cast<T*>(args.out) + row * args.out_stride;
      for (int64_t c = 0; c < args.cols; c += kLanes) {
        const int64_t lanes = args.cols - c;
        const V gate = load_as(x + c, lanes), up = load_as(x + args.cols + c, lanes);
        store_as(out + c, mul(args.epilogue == PGK_SILU_MUL ? silu(gate) : gelu_tanh(gate), up), lanes);
      }
    }
  });
}

}  // namespace

int32_t gated_activation(const ActivationArgs& args) {
  args.dtype == PGK_BF16 ? activate<bf16>(args) : activate<float>(args);
  return PGK_OK;
}

}  // namespace PGK_ISA
}  // namespace pgk
