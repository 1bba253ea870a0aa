/* C interface of the Pegboard kernel library.
 *
 * Every function returns a PgkStatus unless it says otherwise; the text of the last error of the calling
 * thread is pgk_last_error(). Nothing here keeps a pointer after it returns. Strides are in elements.
 * Tensors are row major with a contiguous last dimension.
 */
#ifndef PEGBOARD_KERNELS_H
#define PEGBOARD_KERNELS_H

#include <stdint.h>

#if defined(_WIN32)
#define PGK_EXPORT __declspec(dllexport)
#else
#define PGK_EXPORT __attribute__((visibility("default")))
#endif

#define PGK_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { PGK_OK = 0, PGK_BAD_ARGUMENT = 1, PGK_UNSUPPORTED = 2, PGK_OUT_OF_MEMORY = 3, PGK_MISMATCH = 4 } PgkStatus;
typedef enum { PGK_F32 = 0, PGK_BF16 = 1 } PgkDtype;
/* The order is the order of preference: the highest available one is the default. */
typedef enum { PGK_PORTABLE = 0, PGK_AVX2 = 1, PGK_AVX512 = 2, PGK_AVX512_BF16 = 3, PGK_AMX_BF16 = 4, PGK_AMX_EMULATED = 5, PGK_NUM_ISAS = 6 } PgkIsa;
/* How the rows of a weight are ordered when packed: as they come, or gate and up rows (the first and the second
 * half) side by side in groups of 16 so that the gated activation is an epilogue. */
typedef enum { PGK_ROWS_PLAIN = 0, PGK_ROWS_GATE_UP = 1 } PgkRowOrder;
typedef enum { PGK_NONE = 0, PGK_SILU_MUL = 1, PGK_GELU_TANH_MUL = 2 } PgkEpilogue;

/* Library and machine. */
PGK_EXPORT int32_t pgk_abi_version(void);
PGK_EXPORT const char* pgk_last_error(void);
PGK_EXPORT const char* pgk_isa_name(int32_t isa);
PGK_EXPORT int32_t pgk_isa_available(int32_t isa); /* 1 or 0 */
PGK_EXPORT int32_t pgk_get_isa(void);
PGK_EXPORT int32_t pgk_set_isa(int32_t isa);
PGK_EXPORT int32_t pgk_self_check(int32_t isa); /* PGK_MISMATCH when it differs from the portable path */

/* Threads: `num_threads` counts the calling thread. A worker spins `spin_us` after a job, then sleeps. */
PGK_EXPORT int32_t pgk_set_num_threads(int32_t num_threads, int32_t spin_us);
PGK_EXPORT int32_t pgk_get_num_threads(void);

/* Linear: out[m, n] = x[m, k] . weight[n, k] + bias[n], weights packed once; accumulation is float32.
 * `dtype` of the packed weight; x in float32 is rounded to bfloat16 where the weight is bfloat16. */
PGK_EXPORT int64_t pgk_packed_bytes(int32_t dtype, int64_t n, int64_t k);
PGK_EXPORT int32_t pgk_pack_rows(int32_t dtype, int32_t order, int64_t n, int64_t k, const void* rows, int32_t rows_dtype,
                                 int64_t rows_stride, int64_t row_begin, int64_t num_rows, void* packed);
PGK_EXPORT int32_t pgk_gather_packed(int32_t dtype, int32_t order, int64_t n, int64_t k, const void* packed,
                                     const int64_t* ids, int64_t num_ids, void* out, int32_t out_dtype, int64_t out_stride);
PGK_EXPORT int32_t pgk_linear(int32_t dtype, int64_t n, int64_t k, const void* packed, const float* bias, const void* x,
                              int32_t x_dtype, int64_t x_stride, int64_t m, void* out, int32_t out_dtype,
                              int64_t out_stride, int32_t epilogue);

/* Norms. weight_offset is 0, or 1 for weights stored as w - 1. residual may be NULL; else residual += x in place
 * and the sum is normalised. */
PGK_EXPORT int32_t pgk_rms_norm(const void* x, int64_t x_stride, void* residual, int64_t residual_stride, const void* weight,
                                int32_t weight_dtype, float weight_offset, float eps, int64_t rows, int64_t cols,
                                void* out, int64_t out_stride, int32_t dtype);

/* out[r, c] = act(x[r, c]) * x[r, cols + c] */
PGK_EXPORT int32_t pgk_gated_activation(const void* x, int64_t x_stride, int64_t rows, int64_t cols, void* out,
                                        int64_t out_stride, int32_t dtype, int32_t epilogue);

/* Rows of a plain table. */
PGK_EXPORT int32_t pgk_gather_rows(const void* table, int64_t table_stride, int64_t table_rows, int64_t cols,
                                   const int64_t* ids, int64_t num_ids, void* out, int64_t out_stride, int32_t dtype);

/* Sampling over rows of float32 logits [rows, vocab], `stride` apart.
 * most_likely: the greatest logit and its first index; a NaN counts as the greatest.
 * draw_tokens: inverse of the cumulative distribution of softmax(logits) at a uniform in [0, 1); -inf is never drawn.
 * keep_likely: -inf for what min-p, then top-k, then top-p drop, ties kept; top_k 0, top_p 1, min_p 0 are off.
 * philox_uniform: Philox-4x32-10 of key (seed) and counter (position, 0, stream, 0), the upper 53 of 64 bits over 2^53. */
PGK_EXPORT int32_t pgk_most_likely(const float* logits, int64_t stride, int64_t rows, int64_t vocab, float* values,
                                   int64_t* tokens);
PGK_EXPORT int32_t pgk_draw_tokens(const float* logits, int64_t stride, int64_t rows, int64_t vocab, const double* uniforms,
                                   int64_t* tokens);
PGK_EXPORT int32_t pgk_keep_likely(float* logits, int64_t stride, int64_t rows, int64_t vocab, const int32_t* top_k,
                                   const float* top_p, const float* min_p);
PGK_EXPORT int32_t pgk_philox_uniform(const int64_t* seeds, const int64_t* positions, int64_t stream, int64_t count,
                                      double* uniforms);

/* Optional norm of each head, rotation of query and key in place, and the write of key and value into the cache, in one
 * pass over the tokens. Nullable: q_norm, k_norm, positions (no rotation), query, key_cache (no write), value.
 * cos_sin is [max_position, rotary_size] float32, cosines then sines. slot -1 is skipped. */
PGK_EXPORT int32_t pgk_rotate_and_write(void* query, int64_t query_stride, void* key, int64_t key_stride, const void* value,
                                        int64_t value_stride, int32_t dtype, int64_t num_tokens, int32_t num_q_heads,
                                        int32_t num_kv_heads, int32_t head_size, const void* q_norm, const void* k_norm,
                                        int32_t norm_dtype, float norm_offset, float eps, const int64_t* positions,
                                        const float* cos_sin, int64_t max_position, int32_t rotary_size, int32_t is_neox,
                                        void* key_cache, void* value_cache, int64_t block_stride, int32_t block_size,
                                        const int64_t* slot_mapping, int64_t num_slots);

/* Paged attention over a mixed batch. Cache of one block and head: key [block_size/16][head_size/s][16][s], value
 * [block_size/s][head_size][s] with s = 2 for bfloat16 and 1 for float32; heads follow each other inside a block, and
 * blocks are block_stride elements apart. block_size is a multiple of 16, head_size of 8.
 * window <= 0: no window; else a query sees itself and the window - 1 tokens before it. softcap <= 0: none.
 * sinks: NULL, or a logit a query head that joins the softmax's denominator. */
PGK_EXPORT int32_t pgk_paged_attention(const void* query, int64_t query_stride, void* out, int64_t out_stride,
                                       int32_t dtype, const void* key_cache, const void* value_cache, int64_t block_stride,
                                       int32_t block_size, int32_t num_q_heads, int32_t num_kv_heads, int32_t head_size,
                                       int32_t num_reqs, const int32_t* cu_query_lens, const int32_t* seq_lens,
                                       const int32_t* block_table, int64_t block_table_stride, float scale, float softcap,
                                       int32_t window, int32_t is_causal, const float* sinks);

/* The persistent batch. token_ids is [max_rows, width] int32; rows are lines of it.
 * prepare_inputs: gathers the scheduled tokens of each row from num_computed on, advances num_computed.
 * slot_mapping: block id * block_size + offset of each token, by its request's line of the block table.
 * append_tokens: writes a token behind each row's last one (a full row's last entry is overwritten). */
PGK_EXPORT int32_t pgk_prepare_inputs(const int32_t* token_ids, int64_t max_rows, int64_t width, int32_t* num_computed,
                                      const int64_t* rows, const int32_t* num_scheduled, int64_t num_reqs,
                                      int64_t num_tokens, int64_t* input_ids, int64_t* positions, int64_t* requests,
                                      int32_t* seq_lens);
PGK_EXPORT int32_t pgk_slot_mapping(const int32_t* block_table, int64_t stride, int64_t num_reqs, int64_t max_blocks,
                                    const int64_t* requests, const int64_t* positions, int64_t num_tokens,
                                    int64_t block_size, int64_t* slots);
PGK_EXPORT int32_t pgk_append_tokens(int32_t* token_ids, int64_t max_rows, int64_t width, int32_t* num_tokens,
                                     const int64_t* rows, const int64_t* sampled, int64_t count);

/* A run of pre-norm decoder layers in one call: for each, the residual's norm, the product of queries, keys and values,
 * head norms, rotation and cache write, attention, output product, residual add and norm, gated product, down product.
 * Every step is the kernel above, with the same bits; what is saved is the way between them. */
typedef struct {
  const float *input_norm, *mlp_norm; /* [hidden_size] */
  const void *qkv, *output, *gate_up, *down; /* packed; gate_up in PGK_ROWS_GATE_UP order */
  const float *qkv_bias, *output_bias, *gate_up_bias, *down_bias; /* or NULL */
  const float *q_norm, *k_norm; /* [head_size], or NULL */
  const float* cos_sin;
  void *key_cache, *value_cache;
  const float* sinks; /* or NULL */
  int64_t block_stride, num_blocks, max_position;
  float eps, head_eps, scale, softcap;
  int32_t rotary_size, is_neox, window, epilogue, group; /* group: index into PgkStep.groups */
} PgkLayer;

typedef struct {
  const int64_t* slot_mapping;
  const int32_t* block_table;
  int64_t block_table_stride;
} PgkStepGroup;

typedef struct {
  int64_t num_tokens;
  int32_t num_reqs;
  const int64_t* positions;
  const int32_t *cu_query_lens, *seq_lens;
  const PgkStepGroup* groups;
  void* residual;  /* [num_tokens, hidden_size], contiguous; updated in place */
  void* x;         /* [num_tokens, hidden_size]; the first layer's pending addition where has_x, then the last one's */
  void* workspace; /* num_tokens * (query, key and value heads + query heads) * head_size + intermediate_size elements */
  int32_t has_x;
} PgkStep;

typedef struct {
  int32_t dtype, hidden_size, intermediate_size, num_q_heads, num_kv_heads, head_size, block_size;
} PgkDecoder;

PGK_EXPORT int32_t pgk_decoder_layers(const PgkDecoder* decoder, const PgkLayer* layers, int32_t num_layers,
                                      const PgkStep* step);

#ifdef __cplusplus
}
#endif
#endif
