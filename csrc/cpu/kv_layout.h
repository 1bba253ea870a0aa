// Where a token lies in a block of the paged cache.
//
// One block and head of the key cache is [block_size / 16][head_size / s][16 tokens][s], of the value cache
// [block_size / s][head_size][s tokens], s = 2 for bfloat16 and 1 for float32: exactly the panels and steps of dot.h
// (keys: columns are tokens, k is the head; values: columns are the head, k is tokens).
#pragma once

#include <cstdint>

namespace pgk {

constexpr int64_t kKeyGroup = 16;

template <class T>
struct KvPlace {
  static constexpr int64_t kWidth = sizeof(T) == 2 ? 2 : 1;
  int64_t head_size;
  int64_t head_stride;  // elements of one head of a block: block_size * head_size

  // Offset of the group that holds token `offset` of a block, in a head of the key cache.
  int64_t key_group(int64_t offset) const { return offset / kKeyGroup * kKeyGroup * head_size; }
  // Offset of the step that holds token `offset` of a block, in a head of the value cache.
  int64_t value_step(int64_t offset) const { return offset / kWidth * kWidth * head_size; }
};

}  // namespace pgk
