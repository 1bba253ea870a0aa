// Products with packed weights: one kernel from a single row (bound by reading the weight once) to thousands (bound
// by the dot products).
#include "packing.h"
#include "pool.h"
#include "products.h"
#include "tables.h"

namespace pgk {
namespace PGK_ISA {
namespace {

constexpr int64_t kRowPart = 192;          // most rows of x a chunk: they stay in the second-level cache
constexpr int64_t kTileRows = 64;          // rows whose sums are held before they are finished and stored
constexpr int64_t kChunkBytes = 512 << 10;  // of weights a chunk: worth claiming, small enough to share evenly
constexpr int64_t kStreamAhead = 8192;      // how far ahead of the only pass over a panel to fetch

template <class T>
struct Job {
  const LinearArgs& args;
  const T* x;
  int64_t x_stride;
  int64_t steps;
  int64_t panels;
};

// `lanes` of the 16 values exist.
PGK_INLINE V with_bias(const float* bias, V value, int64_t lanes) {
  if (bias == nullptr) return value;
  return add(value, load_as(bias, lanes));
}

// Finishes `rows` sums of one panel: bias, activation, rounding, store.
template <class Out>
void finish(const LinearArgs& args, const float* sums, int64_t row, int64_t rows, int64_t panel) {
  const bool is_gated = args.epilogue != PGK_NONE;
  const int64_t outputs = is_gated ? args.n / 2 : args.n;
  const int64_t column = panel * (is_gated ? kGroupRows : kPanelRows);
  const int64_t left = outputs - column;
  const float* bias = args.bias == nullptr ? nullptr : args.bias + column;
  for (int64_t r = 0; r < rows; ++r) {
    Out* out = static_cast<Out*>(args.out) + (row + r) * args.out_stride + column;
    const float* from = sums + r * kPanelRows;
    if (is_gated) {
      const V gate = with_bias(bias, load(from), left);
      const V up = with_bias(bias == nullptr ? nullptr : bias + outputs, load(from + kLanes), left);
      store_as(out, mul(args.epilogue == PGK_SILU_MUL ? silu(gate) : gelu_tanh(gate), up), left);
      continue;
    }
    store_as(out, with_bias(bias, load(from), left), left);
    if (left > kLanes)
      store_as(out + kLanes, with_bias(bias == nullptr ? nullptr : bias + kLanes, load(from + kLanes), left - kLanes),
          left - kLanes);
  }
}

// One panel for `rows` rows; `has_next` says that another follows in memory. Whichever thread takes that one, fetching
// it meanwhile pays: weights are read once, and a cache of a neighbour is nearer than memory.
template <class T>
void run_panel(const Job<T>& job, int64_t row, int64_t rows, int64_t panel, bool has_next) {
  const int64_t step_bytes = kPanelRows * Step<T>::kWidth * static_cast<int64_t>(sizeof(T));
  const char* weights = static_cast<const char*>(job.args.packed) + panel * job.steps * step_bytes;
  const int64_t groups = packed_row_groups(sizeof(T) == 2, rows);
  // One pass over the panel fetches just ahead of itself; several together fetch the next panel.
  Ahead ahead{weights + kStreamAhead, step_bytes};
  if (groups > 1) ahead = has_next ? Ahead{weights + job.steps * step_bytes, step_bytes / groups} : Ahead{weights, 0};
  alignas(64) float sums[kTileRows * kPanelRows];
  for (int64_t done = 0; done < rows; done += kTileRows) {
    const int64_t count = min_of(kTileRows, rows - done);
    product_packed(job.x + (row + done) * job.x_stride, job.x_stride, count, reinterpret_cast<const T*>(weights), job.steps,
                   sums, kPanelRows, ahead);
    if (groups > 1) ahead.at += packed_row_groups(sizeof(T) == 2, count) * job.steps * ahead.bytes;
    if (job.args.out_dtype == PGK_BF16) {
      finish<bf16>(job.args, sums, row + done, count, panel);
    } else {
      finish<float>(job.args, sums, row + done, count, panel);
    }
  }
}

template <class T>
void run(const Job<T>& job) {
  const int64_t m = job.args.m;
  const int64_t parts = ceil_div(m, kRowPart);
  const int64_t part_rows = ceil_div(m, parts);
  const int64_t panel_bytes = job.steps * kPanelRows * Step<T>::kWidth * static_cast<int64_t>(sizeof(T));
  const int64_t even = job.panels / (6 * pool_size());
  const int64_t chunk_panels = max_of<int64_t>(1, min_of(even, kChunkBytes / panel_bytes));
  const int64_t columns = ceil_div(job.panels, chunk_panels);
  parallel_for(static_cast<int32_t>(columns * parts), [&](int32_t chunk) {
    const int64_t row = chunk % parts * part_rows;
    const int64_t rows = min_of(part_rows, m - row);
    const int64_t first = chunk / parts * chunk_panels;
    const int64_t last = min_of(first + chunk_panels, job.panels);
    for (int64_t panel = first; panel < last && rows > 0; ++panel) run_panel(job, row, rows, panel, panel + 1 < job.panels);
  });
}

// x as the product wants it: in the weight's type, k padded as the weight's. Copies only when it must.
template <class T, class From>
const T* padded_input(const LinearArgs& args, int64_t k, int64_t* stride) {
  T* to = static_cast<T*>(scratch(kScratchInput, args.m * k * static_cast<int64_t>(sizeof(T)) + 64));
  if (to == nullptr) return nullptr;
  const From* from = static_cast<const From*>(args.x);
  parallel_for(static_cast<int32_t>(ceil_div(args.m, 16)), [&](int32_t chunk) {
    for (int64_t r = chunk * 16; r < min_of<int64_t>(args.m, (chunk + 1) * 16); ++r) {
      for (int64_t i = 0; i < args.k; i += kLanes)
        store_as(to + r * k + i, load_as(from + r * args.x_stride + i, args.k - i), args.k - i);
      for (int64_t i = args.k; i < k; ++i) to[r * k + i] = T(0);
    }
  });
  *stride = k;
  return to;
}

template <class T>
int32_t run_as(const LinearArgs& args) {
  constexpr bool kIsBf16 = sizeof(T) == 2;
  const int64_t k = padded_k(kIsBf16, args.k);
  int64_t x_stride = args.x_stride;
  const T* x = static_cast<const T*>(args.x);
  if ((args.x_dtype == PGK_BF16) != kIsBf16 || k != args.k) {
    x = args.x_dtype == PGK_BF16 ? padded_input<T, bf16>(args, k, &x_stride) : padded_input<T, float>(args, k, &x_stride);
    if (x == nullptr) return PGK_OUT_OF_MEMORY;
  }
  const bool is_gated = args.epilogue != PGK_NONE;
  run(Job<T>{args, x, x_stride, k / Step<T>::kWidth, packed_rows(is_gated, args.n) / kPanelRows});
  return PGK_OK;
}

}  // namespace

int32_t linear(const LinearArgs& args) {
  return args.dtype == PGK_BF16 ? run_as<bf16>(args) : run_as<float>(args);
}

}  // namespace PGK_ISA
}  // namespace pgk
