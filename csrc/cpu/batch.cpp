// The bookkeeping of the persistent batch: a few numbers a request and a token. Rows and requests
// of -1 are padding: they change nothing and read as zero.
#include "errors.h"
#include "pegboard_kernels.h"

namespace {

long long number(int64_t value) { return static_cast<long long>(value); }

int32_t outside(const char* what, int64_t value, int64_t limit) {
  return pgk::fail(PGK_BAD_ARGUMENT, "%s %lld is outside [0, %lld)", what, number(value), number(limit));
}
constexpr int64_t kPadding = -1;
bool is_inside(int64_t value, int64_t limit) { return value >= 0 && value < limit; }

}  // namespace

extern "C" {

int32_t pgk_prepare_inputs(const int32_t* token_ids, int64_t max_rows, int64_t width, int32_t* num_computed,
                           const int64_t* rows, const int32_t* num_scheduled, int64_t num_reqs, int64_t num_tokens,
                           int64_t* input_ids, int64_t* positions, int64_t* requests, int32_t* seq_lens) {
  int64_t total = 0;
  for (int64_t i = 0; i < num_reqs; ++i) {
    const bool is_padding = rows[i] == kPadding;
    if (!is_padding && !is_inside(rows[i], max_rows)) return outside("row", rows[i], max_rows);
    const int64_t begin = is_padding ? 0 : num_computed[rows[i]], end = begin + num_scheduled[i];
    if (num_scheduled[i] < 0 || begin < 0 || end > width) return outside("position", end - 1, width);
    total += num_scheduled[i];
  }
  if (total != num_tokens)
    return pgk::fail(PGK_BAD_ARGUMENT, "%lld tokens are scheduled, there is room for %lld", number(total),
                     number(num_tokens));
  int64_t token = 0;
  for (int64_t i = 0; i < num_reqs; ++i) {
    if (rows[i] == kPadding) {
      for (int64_t j = 0; j < num_scheduled[i]; ++j, ++token) {
        input_ids[token] = positions[token] = 0;
        requests[token] = kPadding;
      }
      seq_lens[i] = 0;
      continue;
    }
    const int64_t begin = num_computed[rows[i]];
    const int32_t* from = token_ids + rows[i] * width + begin;
    for (int64_t j = 0; j < num_scheduled[i]; ++j, ++token) {
      input_ids[token] = from[j];
      positions[token] = begin + j;
      requests[token] = i;
    }
    seq_lens[i] = num_computed[rows[i]] += num_scheduled[i];
  }
  return PGK_OK;
}

int32_t pgk_slot_mapping(const int32_t* block_table, int64_t stride, int64_t num_reqs, int64_t max_blocks,
                         const int64_t* requests, const int64_t* positions, int64_t num_tokens, int64_t block_size,
                         int64_t* slots) {
  if (block_size < 1) return pgk::fail(PGK_BAD_ARGUMENT, "block size is %lld; at least 1 is needed", number(block_size));
  for (int64_t i = 0; i < num_tokens; ++i) {
    if (requests[i] == kPadding) {
      slots[i] = kPadding;
      continue;
    }
    const int64_t block = positions[i] / block_size;
    if (!is_inside(requests[i], num_reqs)) return outside("request", requests[i], num_reqs);
    if (positions[i] < 0 || block >= max_blocks) return outside("position", positions[i], max_blocks * block_size);
    slots[i] = block_table[requests[i] * stride + block] * block_size + positions[i] % block_size;
  }
  return PGK_OK;
}

int32_t pgk_append_tokens(int32_t* token_ids, int64_t max_rows, int64_t width, int32_t* num_tokens, const int64_t* rows,
                          const int64_t* sampled, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if (rows[i] != kPadding && !is_inside(rows[i], max_rows)) return outside("row", rows[i], max_rows);
  for (int64_t i = 0; i < count; ++i) {
    if (rows[i] == kPadding) continue;
    const int64_t at = num_tokens[rows[i]];
    if (at < 0) return outside("number of tokens", at, width);
    token_ids[rows[i] * width + (at < width ? at : width - 1)] = static_cast<int32_t>(sampled[i]);
    ++num_tokens[rows[i]];
  }
  return PGK_OK;
}

}  // extern "C"
