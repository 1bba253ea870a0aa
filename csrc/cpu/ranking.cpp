#include "ranking.h"

#include <algorithm>
#include <functional>

namespace pgk {

float kth_greatest(float* values, int64_t n, int64_t k) {
  std::nth_element(values, values + k - 1, values + n, std::greater<float>());
  return values[k - 1];
}

void sort_descending(float* values, int64_t n) { std::sort(values, values + n, std::greater<float>()); }

}  // namespace pgk
