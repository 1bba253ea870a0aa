#include "philox.h"

namespace pgk {

double philox_uniform(int64_t seed, int64_t position, int64_t stream) {
  constexpr uint32_t kFirst = 0xD2511F53u, kSecond = 0xCD9E8D57u, kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(static_cast<uint64_t>(seed) >> 32)};
  uint32_t word[4] = {static_cast<uint32_t>(position), 0, static_cast<uint32_t>(stream), 0};
  for (int round = 0; round < 10; ++round) {
    const uint64_t p = static_cast<uint64_t>(kFirst) * word[0];
    const uint64_t q = static_cast<uint64_t>(kSecond) * word[2];
    const uint32_t next[4] = {static_cast<uint32_t>(q >> 32) ^ word[1] ^ key[0], static_cast<uint32_t>(q),
                              static_cast<uint32_t>(p >> 32) ^ word[3] ^ key[1], static_cast<uint32_t>(p)};
    for (int i = 0; i < 4; ++i) word[i] = next[i];
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  const uint64_t bits = (static_cast<uint64_t>(word[0]) << 21) | (word[1] >> 11);
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace pgk
