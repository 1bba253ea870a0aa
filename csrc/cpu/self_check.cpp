#include "self_check.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "errors.h"
#include "packing.h"

namespace pgk {
namespace {

// Small whole numbers over 8: exact in bfloat16, and their products and sums exact in float32.
class Numbers {
 public:
  uint16_t bf16() {
    state_ = state_ * 1664525u + 1013904223u;
    const float value = static_cast<float>(static_cast<int32_t>(state_ >> 28) - 8) / 8.0f;
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return static_cast<uint16_t>(bits >> 16);
  }
  std::vector<uint16_t> many(int64_t count) {
    std::vector<uint16_t> values(static_cast<size_t>(count));
    for (uint16_t& value : values) value = bf16();
    return values;
  }

 private:
  uint32_t state_ = 12345;
};

float widened(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

std::vector<float> linear_with(const KernelTable& table, const std::vector<uint16_t>& weight,
                               const std::vector<uint16_t>& x, int64_t n, int64_t k, int64_t m) {
  std::vector<uint16_t> packed(static_cast<size_t>(packed_rows(false, n) * padded_k(true, k)));
  table.pack_rows({PGK_BF16, PGK_ROWS_PLAIN, n, k, weight.data(), PGK_BF16, k, 0, n, packed.data()});
  std::vector<float> out(static_cast<size_t>(m * n));
  table.linear({PGK_BF16, n, k, packed.data(), nullptr, x.data(), PGK_BF16, k, m, out.data(), PGK_F32, n, PGK_NONE});
  return out;
}

std::vector<float> attention_with(const KernelTable& table, const std::vector<uint16_t>& query,
                                  const std::vector<uint16_t>& cache, int32_t length) {
  constexpr int32_t kHead = 64, kBlock = 32, kHeads = 3;
  const int32_t cu_query_lens[2] = {0, length}, seq_lens[1] = {length}, blocks[3] = {2, 0, 1};
  std::vector<uint16_t> out(query.size());
  table.paged_attention({query.data(), kHeads * kHead, out.data(), kHeads * kHead, PGK_BF16, cache.data(),
                         cache.data() + kBlock * kHead, 2 * kBlock * kHead, kBlock, kHeads, 1, kHead, 1, cu_query_lens,
                         seq_lens, blocks, 3, 0.125f, 0.0f, 0, 1, nullptr});
  std::vector<float> result;
  for (uint16_t value : out) result.push_back(widened(value));
  return result;
}

int32_t compare(const std::vector<float>& got, const std::vector<float>& expected, float tolerance, const char* name,
                const char* what) {
  for (size_t i = 0; i < got.size(); ++i)
    if (!(std::fabs(got[i] - expected[i]) <= tolerance))
      return fail(PGK_MISMATCH, "%s: %s differs from the portable path at %zu: %g, not %g", name, what, i,
                  static_cast<double>(got[i]), static_cast<double>(expected[i]));
  return PGK_OK;
}

}  // namespace

int32_t self_check(const KernelTable& table, const KernelTable& portable, const char* name) {
  Numbers numbers;
  for (const int64_t m : {1, 7, 37}) {
    constexpr int64_t kN = 80, kK = 96;
    const std::vector<uint16_t> weight = numbers.many(kN * kK), x = numbers.many(m * kK);
    const int32_t status = compare(linear_with(table, weight, x, kN, kK, m), linear_with(portable, weight, x, kN, kK, m),
                                   0.0f, name, "linear");
    if (status != PGK_OK) return status;
  }
  constexpr int32_t kLength = 75;
  const std::vector<uint16_t> query = numbers.many(kLength * 3 * 64), cache = numbers.many(3 * 2 * 32 * 64);
  return compare(attention_with(table, query, cache, kLength), attention_with(portable, query, cache, kLength), 2e-2f, name,
                 "attention");
}

}  // namespace pgk
