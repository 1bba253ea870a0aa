// Counter-based random numbers: the same bits as Pegboard's plain reference.
#pragma once

#include <cstdint>

namespace pgk {

// Philox-4x32-10 with key = seed's two words and counter = (position, 0, stream, 0); the first two words of the result
// give 53 bits: ((w0 << 21) | (w1 >> 11)) * 2^-53.
// Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011.
double philox_uniform(int64_t seed, int64_t position, int64_t stream);

}  // namespace pgk
