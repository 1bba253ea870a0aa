// The C boundary: checks arguments, picks the instruction set's kernel.
#include "errors.h"
#include "isa.h"
#include "packing.h"
#include "philox.h"
#include "pool.h"
#include "self_check.h"
#include "tables.h"

namespace {

using pgk::fail;

// Checks that need no name each: a call site says what it needs in words.
#define PGK_REQUIRE(condition, ...) \
  if (!(condition)) return fail(PGK_BAD_ARGUMENT, __VA_ARGS__)

bool is_dtype(int32_t dtype) { return dtype == PGK_F32 || dtype == PGK_BF16; }
bool is_order(int32_t order) { return order == PGK_ROWS_PLAIN || order == PGK_ROWS_GATE_UP; }
long long number(int64_t value) { return static_cast<long long>(value); }

const pgk::KernelTable& kernels() { return *pgk::kernel_table(pgk::isa_current()); }

int32_t finished(int32_t status, const char* what) {
  return status == PGK_OK ? status : fail(status, "%s: out of memory for scratch space", what);
}

int32_t check_ids(const int64_t* ids, int64_t num_ids, int64_t limit) {
  for (int64_t i = 0; i < num_ids; ++i)
    PGK_REQUIRE(ids[i] >= 0 && ids[i] < limit, "row id %lld is outside [0, %lld)", number(ids[i]), number(limit));
  return PGK_OK;
}

}  // namespace

extern "C" {

int32_t pgk_abi_version(void) { return PGK_ABI_VERSION; }
const char* pgk_last_error(void) { return pgk::last_error(); }
const char* pgk_isa_name(int32_t isa) { return pgk::isa_name(isa); }
int32_t pgk_isa_available(int32_t isa) { return pgk::isa_available(isa) ? 1 : 0; }
int32_t pgk_get_isa(void) { return pgk::isa_current(); }

int32_t pgk_set_isa(int32_t isa) {
  PGK_REQUIRE(pgk::isa_name(isa) != nullptr, "there is no instruction set %d", isa);
  if (!pgk::isa_available(isa))
    return fail(PGK_UNSUPPORTED, "%s cannot run on this processor or was not compiled in", pgk::isa_name(isa));
  pgk::isa_select(isa);
  return PGK_OK;
}

int32_t pgk_self_check(int32_t isa) {
  PGK_REQUIRE(pgk::isa_name(isa) != nullptr, "there is no instruction set %d", isa);
  if (!pgk::isa_available(isa))
    return fail(PGK_UNSUPPORTED, "%s cannot run on this processor or was not compiled in", pgk::isa_name(isa));
  return pgk::self_check(*pgk::kernel_table(isa), *pgk::kernel_table(PGK_PORTABLE), pgk::isa_name(isa));
}

int32_t pgk_set_num_threads(int32_t num_threads, int32_t spin_us) {
  PGK_REQUIRE(num_threads >= 1 && num_threads <= 1024, "num_threads is %d; 1 to 1024", num_threads);
  PGK_REQUIRE(spin_us >= 0, "spin_us is %d; 0 or more", spin_us);
  if (!pgk::pool_resize(num_threads, spin_us))
    return fail(PGK_OUT_OF_MEMORY, "only %d of %d threads could be started", pgk::pool_size(), num_threads);
  return PGK_OK;
}
int32_t pgk_get_num_threads(void) { return pgk::pool_size(); }

int64_t pgk_packed_bytes(int32_t dtype, int64_t n, int64_t k) {
  if (!is_dtype(dtype) || n < 1 || k < 1) return -1;
  // The larger of the two orders: gate and up halves may each need padding.
  const int64_t rows = n % 2 == 0 && pgk::packed_rows(true, n) > pgk::packed_rows(false, n) ? pgk::packed_rows(true, n)
                                                                                            : pgk::packed_rows(false, n);
  return rows * pgk::padded_k(dtype == PGK_BF16, k) * (dtype == PGK_BF16 ? 2 : 4);
}

int32_t pgk_pack_rows(int32_t dtype, int32_t order, int64_t n, int64_t k, const void* rows, int32_t rows_dtype,
                      int64_t rows_stride, int64_t row_begin, int64_t num_rows, void* packed) {
  PGK_REQUIRE(is_dtype(dtype) && is_dtype(rows_dtype), "pack_rows: dtypes are %d and %d", dtype, rows_dtype);
  PGK_REQUIRE(is_order(order) && (order == PGK_ROWS_PLAIN || n % 2 == 0), "pack_rows: row order %d with n = %lld", order,
              number(n));
  PGK_REQUIRE(rows != nullptr && packed != nullptr, "pack_rows: a null pointer");
  PGK_REQUIRE(row_begin >= 0 && num_rows >= 0 && row_begin + num_rows <= n && k > 0 && rows_stride >= k,
              "pack_rows: rows %lld + %lld of %lld, k = %lld, stride %lld", number(row_begin), number(num_rows), number(n),
              number(k), number(rows_stride));
  return kernels().pack_rows({dtype, order, n, k, rows, rows_dtype, rows_stride, row_begin, num_rows, packed});
}

int32_t pgk_gather_packed(int32_t dtype, int32_t order, int64_t n, int64_t k, const void* packed, const int64_t* ids,
                          int64_t num_ids, void* out, int32_t out_dtype, int64_t out_stride) {
  PGK_REQUIRE(is_dtype(dtype) && is_dtype(out_dtype) && is_order(order), "gather_packed: dtypes are %d and %d", dtype,
              out_dtype);
  PGK_REQUIRE(packed != nullptr && (num_ids == 0 || (ids != nullptr && out != nullptr)), "gather_packed: a null pointer");
  PGK_REQUIRE(out_stride >= k, "gather_packed: stride %lld is under k = %lld", number(out_stride), number(k));
  const int32_t status = check_ids(ids, num_ids, n);
  if (status != PGK_OK) return status;
  return kernels().gather_packed({dtype, order, n, k, packed, ids, num_ids, out, out_dtype, out_stride});
}

int32_t pgk_linear(int32_t dtype, int64_t n, int64_t k, const void* packed, const float* bias, const void* x,
                   int32_t x_dtype, int64_t x_stride, int64_t m, void* out, int32_t out_dtype, int64_t out_stride,
                   int32_t epilogue) {
  PGK_REQUIRE(is_dtype(dtype) && is_dtype(x_dtype) && is_dtype(out_dtype), "linear: dtypes are %d, %d and %d", dtype,
              x_dtype, out_dtype);
  PGK_REQUIRE(epilogue >= PGK_NONE && epilogue <= PGK_GELU_TANH_MUL && (epilogue == PGK_NONE || n % 2 == 0),
              "linear: epilogue %d with n = %lld", epilogue, number(n));
  PGK_REQUIRE(n > 0 && k > 0 && m >= 0 && x_stride >= k && out_stride >= (epilogue == PGK_NONE ? n : n / 2),
              "linear: m, n, k are %lld, %lld, %lld and strides %lld, %lld", number(m), number(n), number(k),
              number(x_stride), number(out_stride));
  if (m == 0) return PGK_OK;
  PGK_REQUIRE(packed != nullptr && x != nullptr && out != nullptr, "linear: a null pointer");
  return finished(
      kernels().linear({dtype, n, k, packed, bias, x, x_dtype, x_stride, m, out, out_dtype, out_stride, epilogue}), "linear");
}

int32_t pgk_rms_norm(const void* x, int64_t x_stride, void* residual, int64_t residual_stride, const void* weight,
                     int32_t weight_dtype, float weight_offset, float eps, int64_t rows, int64_t cols, void* out,
                     int64_t out_stride, int32_t dtype) {
  PGK_REQUIRE(is_dtype(dtype) && is_dtype(weight_dtype), "rms_norm: dtypes are %d and %d", dtype, weight_dtype);
  PGK_REQUIRE(rows >= 0 && cols > 0 && x_stride >= cols && out_stride >= cols &&
                  (residual == nullptr || residual_stride >= cols),
              "rms_norm: %lld x %lld with strides %lld, %lld", number(rows), number(cols), number(x_stride),
              number(out_stride));
  if (rows == 0) return PGK_OK;
  PGK_REQUIRE(x != nullptr && out != nullptr, "rms_norm: a null pointer");
  return kernels().rms_norm({x, x_stride, residual, residual_stride, weight, weight_dtype, weight_offset, eps, rows, cols,
                             out, out_stride, dtype});
}

int32_t pgk_gated_activation(const void* x, int64_t x_stride, int64_t rows, int64_t cols, void* out, int64_t out_stride,
                             int32_t dtype, int32_t epilogue) {
  PGK_REQUIRE(is_dtype(dtype), "gated_activation: dtype is %d", dtype);
  PGK_REQUIRE(epilogue == PGK_SILU_MUL || epilogue == PGK_GELU_TANH_MUL, "gated_activation: activation is %d", epilogue);
  PGK_REQUIRE(rows >= 0 && cols > 0 && x_stride >= 2 * cols && out_stride >= cols,
              "gated_activation: %lld x %lld with strides %lld, %lld", number(rows), number(cols), number(x_stride),
              number(out_stride));
  if (rows == 0) return PGK_OK;
  PGK_REQUIRE(x != nullptr && out != nullptr, "gated_activation: a null pointer");
  return kernels().gated_activation({x, x_stride, rows, cols, out, out_stride, dtype, epilogue});
}

int32_t pgk_rotate_and_write(void* query, int64_t query_stride, void* key, int64_t key_stride, const void* value,
                             int64_t value_stride, int32_t dtype, int64_t num_tokens, int32_t num_q_heads,
                             int32_t num_kv_heads, int32_t head_size, const void* q_norm, const void* k_norm,
                             int32_t norm_dtype, float norm_offset, float eps, const int64_t* positions,
                             const float* cos_sin, int64_t max_position, int32_t rotary_size, int32_t is_neox,
                             void* key_cache, void* value_cache, int64_t block_stride, int32_t block_size,
                             const int64_t* slot_mapping, int64_t num_slots) {
  PGK_REQUIRE(is_dtype(dtype) && is_dtype(norm_dtype), "rotate_and_write: dtypes are %d and %d", dtype, norm_dtype);
  PGK_REQUIRE(head_size > 0 && head_size <= 1024 && head_size % 2 == 0, "rotate_and_write: head size %d; even, up to 1024",
              head_size);
  PGK_REQUIRE(num_tokens >= 0 && num_q_heads >= 0 && num_kv_heads >= 0, "rotate_and_write: %lld tokens, %d and %d heads",
              number(num_tokens), num_q_heads, num_kv_heads);
  if (positions != nullptr) {
    PGK_REQUIRE(cos_sin != nullptr && rotary_size > 0 && rotary_size <= head_size && rotary_size % 2 == 0,
                "rotate_and_write: rotary size %d of head size %d", rotary_size, head_size);
    for (int64_t i = 0; i < num_tokens; ++i)
      PGK_REQUIRE(positions[i] >= 0 && positions[i] < max_position, "position %lld is outside [0, %lld)",
                  number(positions[i]), number(max_position));
  }
  if (key_cache != nullptr) {
    PGK_REQUIRE(key != nullptr && value != nullptr && value_cache != nullptr && slot_mapping != nullptr,
                "rotate_and_write: a cache without key, value or slots");
    PGK_REQUIRE(block_size > 0 && block_size % 16 == 0, "rotate_and_write: block size %d; a multiple of 16", block_size);
    for (int64_t i = 0; i < num_tokens; ++i)
      PGK_REQUIRE(slot_mapping[i] < num_slots, "slot %lld is outside [0, %lld)", number(slot_mapping[i]),
                  number(num_slots));
  }
  return kernels().rotate_and_write({query, query_stride, key, key_stride, value, value_stride, dtype, num_tokens,
                                     num_q_heads, num_kv_heads, head_size, q_norm, k_norm, norm_dtype, norm_offset, eps,
                                     positions, cos_sin, rotary_size, is_neox, key_cache, value_cache, block_stride,
                                     block_size, slot_mapping});
}

int32_t pgk_paged_attention(const void* query, int64_t query_stride, void* out, int64_t out_stride, int32_t dtype,
                            const void* key_cache, const void* value_cache, int64_t block_stride, int32_t block_size,
                            int32_t num_q_heads, int32_t num_kv_heads, int32_t head_size, int32_t num_reqs,
                            const int32_t* cu_query_lens, const int32_t* seq_lens, const int32_t* block_table,
                            int64_t block_table_stride, float scale, float softcap, int32_t window, int32_t is_causal,
                            const float* sinks) {
  PGK_REQUIRE(is_dtype(dtype), "paged_attention: dtype is %d", dtype);
  PGK_REQUIRE(block_size > 0 && block_size % 16 == 0, "paged_attention: block size %d; a multiple of 16", block_size);
  PGK_REQUIRE(head_size > 0 && head_size <= 1024 && head_size % 8 == 0, "paged_attention: head size %d; a multiple of 8",
              head_size);
  PGK_REQUIRE(num_kv_heads > 0 && num_q_heads > 0 && num_q_heads % num_kv_heads == 0,
              "paged_attention: %d query heads over %d key heads", num_q_heads, num_kv_heads);
  if (num_reqs == 0) return PGK_OK;
  PGK_REQUIRE(num_reqs > 0 && query != nullptr && out != nullptr && key_cache != nullptr && value_cache != nullptr &&
                  cu_query_lens != nullptr && seq_lens != nullptr && block_table != nullptr,
              "paged_attention: a null pointer");
  for (int32_t i = 0; i < num_reqs; ++i) {
    const int32_t query_len = cu_query_lens[i + 1] - cu_query_lens[i];
    PGK_REQUIRE(query_len >= 0 && (query_len == 0 || seq_lens[i] >= query_len),
                "paged_attention: request %d has query length %d and sequence length %d", i, query_len, seq_lens[i]);
    PGK_REQUIRE(query_len == 0 || (seq_lens[i] + block_size - 1) / block_size <= block_table_stride,
                "paged_attention: request %d has %d tokens, its block table holds %lld blocks of %d", i, seq_lens[i],
                number(block_table_stride), block_size);
  }
  return finished(kernels().paged_attention({query, query_stride, out, out_stride, dtype, key_cache, value_cache,
                                             block_stride, block_size, num_q_heads, num_kv_heads, head_size, num_reqs,
                                             cu_query_lens, seq_lens, block_table, block_table_stride, scale, softcap,
                                             window, is_causal, sinks}),
                  "paged_attention");
}

#define PGK_REQUIRE_ROWS(name)                                                                             \
  PGK_REQUIRE(rows >= 0 && vocab > 0 && stride >= vocab, name ": %lld x %lld, stride %lld", number(rows), \
              number(vocab), number(stride));                                                              \
  if (rows == 0) return PGK_OK;                                                                            \
  PGK_REQUIRE(logits != nullptr, name ": a null pointer")

int32_t pgk_most_likely(const float* logits, int64_t stride, int64_t rows, int64_t vocab, float* values, int64_t* tokens) {
  PGK_REQUIRE_ROWS("most_likely");
  return kernels().most_likely(
      {const_cast<float*>(logits), stride, rows, vocab, values, tokens, nullptr, nullptr, nullptr, nullptr});
}

int32_t pgk_draw_tokens(const float* logits, int64_t stride, int64_t rows, int64_t vocab, const double* uniforms,
                        int64_t* tokens) {
  PGK_REQUIRE_ROWS("draw_tokens");
  return finished(kernels().draw_tokens({const_cast<float*>(logits), stride, rows, vocab, nullptr, tokens, uniforms, nullptr,
                                         nullptr, nullptr}),
                  "draw_tokens");
}

int32_t pgk_keep_likely(float* logits, int64_t stride, int64_t rows, int64_t vocab, const int32_t* top_k,
                        const float* top_p, const float* min_p) {
  PGK_REQUIRE_ROWS("keep_likely");
  return finished(
      kernels().keep_likely({logits, stride, rows, vocab, nullptr, nullptr, nullptr, top_k, top_p, min_p}), "keep_likely");
}

int32_t pgk_philox_uniform(const int64_t* seeds, const int64_t* positions, int64_t stream, int64_t count,
                           double* uniforms) {
  PGK_REQUIRE(count >= 0 && (count == 0 || (seeds != nullptr && positions != nullptr && uniforms != nullptr)),
              "philox_uniform: %lld rows or a null pointer", number(count));
  for (int64_t i = 0; i < count; ++i) uniforms[i] = pgk::philox_uniform(seeds[i], positions[i], stream);
  return PGK_OK;
}

int32_t pgk_gather_rows(const void* table, int64_t table_stride, int64_t table_rows, int64_t cols, const int64_t* ids,
                        int64_t num_ids, void* out, int64_t out_stride, int32_t dtype) {
  PGK_REQUIRE(is_dtype(dtype), "gather_rows: dtype is %d", dtype);
  PGK_REQUIRE(cols > 0 && table_stride >= cols && out_stride >= cols, "gather_rows: %lld columns, strides %lld and %lld",
              number(cols), number(table_stride), number(out_stride));
  const int32_t status = check_ids(ids, num_ids, table_rows);
  if (status != PGK_OK) return status;
  const int64_t size = dtype == PGK_BF16 ? 2 : 4;
  pgk::parallel_for(static_cast<int32_t>((num_ids + 31) / 32), [&](int32_t chunk) {
    for (int64_t i = chunk * 32; i < num_ids && i < (chunk + 1) * 32; ++i)
      __builtin_memcpy(static_cast<char*>(out) + i * out_stride * size,
                       static_cast<const char*>(table) + ids[i] * table_stride * size, static_cast<unsigned long>(cols * size));
  });
  return PGK_OK;
}

}  // extern "C"
