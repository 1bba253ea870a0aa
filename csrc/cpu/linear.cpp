// Products with packed weights: one kernel from a single row (bound by reading the weight once) to thousands (bound
// by the dot products).
#include "packing.h"
#include "pool.h"
#include "products.h"
#include "tables.h"

namespace pgk {
namespace PGK_ISA {
namespace {

constexpr int64_t kRowPart = 192;   // rows of x a chunk when there are many: they stay in the second-level cache
constexpr int64_t kTileRows = 48;   // rows whose sums are held before they are finished and stored

template <class T>
struct Job {
  const LinearArgs& args;
  const T* x;
  int64_t x_stride;
  int64_t steps;
  int64_t panels;
};

// Finishes `rows` x `panels` * 32 sums: bias, activation, rounding, store.
template <class Out>
void finish(const LinearArgs& args, const float* sums, int64_t sums_stride, int64_t row, int64_t rows, int64_t panel,
            int64_t panels) {
  const bool is_gated = args.epilogue != PGK_NONE;
  const int64_t outputs = is_gated ? args.n / 2 : args.n;
  const int64_t per_panel = is_gated ? kGroupRows : kPanelRows;
  for (int64_t r = 0; r < rows; ++r) {
    Out* out = static_cast<Out*>(args.out) + (row + r) * args.out_stride;
    for (int64_t p = 0; p < panels; ++p) {
      const float* from = sums + r * sums_stride + p * kPanelRows;
      const int64_t column = (panel + p) * per_panel;
      if (is_gated) {
        const int lanes = static_cast<int>(min_of<int64_t>(kLanes, outputs - column));
        V gate = load(from), up = load(from + kLanes);
        if (args.bias != nullptr) {
          gate = add(gate, load_n(args.bias + column, lanes));
          up = add(up, load_n(args.bias + outputs + column, lanes));
        }
        const V value = mul(args.epilogue == PGK_SILU_MUL ? silu(gate) : gelu_tanh(gate), up);
        store_as(out + column, value, lanes);
        continue;
      }
      for (int64_t half = 0; half < kPanelRows; half += kLanes) {
        const int64_t left = outputs - column - half;
        if (left <= 0) break;
        V value = load(from + half);
        if (left >= kLanes) {
          if (args.bias != nullptr) value = add(value, load(args.bias + column + half));
          store_as(out + column + half, value);
        } else {
          const int lanes = static_cast<int>(left);
          if (args.bias != nullptr) value = add(value, load_n(args.bias + column + half, lanes));
          store_as(out + column + half, value, lanes);
        }
      }
    }
  }
}

template <class T>
void run_block(const Job<T>& job, int64_t row, int64_t rows, int64_t panel, int64_t panels) {
  const int64_t panel_size = job.steps * kPanelRows * Step<T>::kWidth;
  const T* weights[2 * 2];
  for (int64_t p = 0; p < panels; ++p) {
    const T* base = static_cast<const T*>(job.args.packed) + (panel + p) * panel_size;
    weights[2 * p] = base;
    weights[2 * p + 1] = base + kGroupRows * Step<T>::kWidth;
  }
  alignas(64) float sums[kTileRows * 2 * kPanelRows];
  for (int64_t done = 0; done < rows; done += kTileRows) {
    const int64_t count = min_of(kTileRows, rows - done);
    product_panels(job.x + (row + done) * job.x_stride, job.x_stride, count, weights, static_cast<int>(2 * panels),
                   kPanelRows * Step<T>::kWidth, job.steps, sums, 2 * kPanelRows);
    if (job.args.out_dtype == PGK_BF16) {
      finish<bf16>(job.args, sums, 2 * kPanelRows, row + done, count, panel, panels);
    } else {
      finish<float>(job.args, sums, 2 * kPanelRows, row + done, count, panel, panels);
    }
  }
}

template <class T>
void run(const Job<T>& job) {
  const int64_t m = job.args.m;
  const int64_t parts = ceil_div(m, kRowPart);
  const int64_t part_rows = ceil_div(m, parts);
  // About four chunks a thread: small enough to share evenly, large enough to stream.
  const int64_t wanted = 4 * pool_size();
  int64_t chunk_panels = max_of<int64_t>(1, job.panels / wanted);
  if (chunk_panels > 1 || m > 8) chunk_panels = ceil_div(chunk_panels, 2) * 2;
  const int64_t columns = ceil_div(job.panels, chunk_panels);
  parallel_for(static_cast<int32_t>(columns * parts), [&](int32_t chunk) {
    const int64_t row = chunk % parts * part_rows;
    const int64_t rows = min_of(part_rows, m - row);
    const int64_t first = chunk / parts * chunk_panels;
    const int64_t last = min_of(first + chunk_panels, job.panels);
    for (int64_t panel = first; panel < last && rows > 0; panel += 2)
      run_block(job, row, rows, panel, min_of<int64_t>(2, last - panel));
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
      int64_t i = 0;
      for (; i + kLanes <= args.k; i += kLanes) store_as(to + r * k + i, load_as(from + r * args.x_stride + i));
      if (i < args.k) {
        const int lanes = static_cast<int>(args.k - i);
        store_as(to + r * k + i, load_as(from + r * args.x_stride + i, lanes), lanes);
      }
      for (i = args.k; i < k; ++i) to[r * k + i] = T(0);
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
