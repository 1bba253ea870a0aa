// Orders of floats, compiled once for the base target: the standard library's templates must not be instantiated in
// the sources of an instruction set, or the linker would share one set's copy with all.
#pragma once

#include <cstdint>

namespace pgk {

// The k-th greatest of n values, 1 <= k <= n; reorders them.
float kth_greatest(float* values, int64_t n, int64_t k);
void sort_descending(float* values, int64_t n);

}  // namespace pgk
