// The floor and how far the products are from it: read bandwidth, then every matrix of one model step.
//
// usage: pgk_probe [isa] (default: the best one). Build with -DPGK_PROBE=ON. Shapes are SmolLM2-135M's.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "pegboard_kernels.h"

namespace {

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double best_of(int repeats, const std::function<void()>& body) {
  double best = 1e30;
  for (int i = 0; i < repeats; ++i) {
    const double start = seconds();
    body();
    const double took = seconds() - start;
    best = took < best ? took : best;
  }
  return best;
}

struct Buffer {
  explicit Buffer(size_t bytes) : data(static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64))), size(bytes) {
    if (data == nullptr) std::abort();
    std::memset(data, 0, (bytes + 63) / 64 * 64);
  }
  Buffer(const Buffer&) = delete;
  Buffer(Buffer&& other) noexcept : data(other.data), size(other.size) { other.data = nullptr; }
  ~Buffer() { std::free(data); }
  char* data;
  size_t size;
};

volatile uint64_t sink;

void read_all(const char* data, size_t bytes) {
  uint64_t sums[8] = {};
  for (size_t i = 0; i + 64 <= bytes; i += 64)
    for (size_t j = 0; j < 8; ++j) {
      uint64_t word;
      std::memcpy(&word, data + i + 8 * j, 8);
      sums[j] ^= word;
    }
  for (uint64_t sum : sums) sink = sink ^ sum;
}

double read_bandwidth(int threads) {
  const Buffer buffer(size_t{256} << 20);
  const size_t part = buffer.size / static_cast<size_t>(threads);
  return static_cast<double>(buffer.size) / best_of(6, [&] {
           std::vector<std::thread> all;
           for (int t = 0; t < threads; ++t)
             all.emplace_back([&, t] { read_all(buffer.data + static_cast<size_t>(t) * part, part); });
           for (std::thread& each : all) each.join();
         }) / 1e9;
}

struct Matrix {
  int64_t n, k;
  int32_t epilogue;
};

struct Weight {
  Matrix shape;
  Buffer packed;
};

std::vector<Weight> model_weights() {
  const Matrix layer[] = {{960, 576, PGK_NONE}, {576, 576, PGK_NONE}, {3072, 576, PGK_SILU_MUL}, {576, 1536, PGK_NONE}};
  std::vector<Weight> weights;
  for (int i = 0; i < 30; ++i)
    for (const Matrix& shape : layer)
      weights.push_back({shape, Buffer(static_cast<size_t>(pgk_packed_bytes(PGK_BF16, shape.n, shape.k)))});
  const Matrix head = {49152, 576, PGK_NONE};
  weights.push_back({head, Buffer(static_cast<size_t>(pgk_packed_bytes(PGK_BF16, head.n, head.k)))});
  return weights;
}

void step(const std::vector<Weight>& weights, int64_t m, const Buffer& x, Buffer* out) {
  for (const Weight& weight : weights) {
    const Matrix& s = weight.shape;
    if (s.n > 10000 && m > 64) continue;  // a prompt needs the head's last row only
    const int64_t outputs = s.epilogue == PGK_NONE ? s.n : s.n / 2;
    if (pgk_linear(PGK_BF16, s.n, s.k, weight.packed.data, nullptr, x.data, PGK_BF16, s.k, m, out->data, PGK_BF16, outputs,
                   s.epilogue) != PGK_OK)
      std::printf("failed: %s\n", pgk_last_error());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && pgk_set_isa(std::atoi(argv[1])) != PGK_OK) {
    std::printf("%s\n", pgk_last_error());
    return 1;
  }
  std::printf("isa %s\n", pgk_isa_name(pgk_get_isa()));
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  for (int threads = 1; threads <= cores && threads <= 2; ++threads)
    std::printf("read, %d thread(s): %.1f GB/s\n", threads, read_bandwidth(threads));
  const std::vector<Weight> weights = model_weights();
  const Buffer x(size_t{2048} * 1536 * 2);
  Buffer out(size_t{2048} * 49152 * 2);
  for (int threads = 1; threads <= cores && threads <= 2; ++threads) {
    pgk_set_num_threads(threads, 50);
    for (const int64_t m : {1, 2, 4, 8, 16, 32, 64, 128, 512}) {
      const double took = best_of(m < 100 ? 6 : 3, [&] { step(weights, m, x, &out); });
      double elements = 0;
      for (const Weight& weight : weights)
        if (weight.shape.n < 10000 || m <= 64) elements += static_cast<double>(weight.shape.n * weight.shape.k);
      std::printf("%d thread(s), m %4d: %8.2f ms, %5.1f GB/s of weights, %6.0f GFLOP/s\n", threads, static_cast<int>(m),
                  took * 1e3, elements * 2 / took / 1e9, elements * 2 * static_cast<double>(m) / took / 1e9);
    }
  }
  return 0;
}
