// What the C boundary hands to the kernels, and the table of kernels an instruction set provides.
#pragma once

#include <cstdint>

#include "pegboard_kernels.h"

namespace pgk {

struct PackArgs {
  int32_t dtype, order;
  int64_t n, k;
  const void* rows;
  int32_t rows_dtype;
  int64_t rows_stride, row_begin, num_rows;
  void* packed;
};

struct GatherPackedArgs {
  int32_t dtype, order;
  int64_t n, k;
  const void* packed;
  const int64_t* ids;
  int64_t num_ids;
  void* out;
  int32_t out_dtype;
  int64_t out_stride;
};

struct LinearArgs {
  int32_t dtype;
  int64_t n, k;
  const void* packed;
  const float* bias;
  const void* x;
  int32_t x_dtype;
  int64_t x_stride, m;
  void* out;
  int32_t out_dtype;
  int64_t out_stride;
  int32_t epilogue;
};

struct NormArgs {
  const void* x;
  int64_t x_stride;
  void* residual;
  int64_t residual_stride;
  const void* weight;
  int32_t weight_dtype;
  float weight_offset, eps;
  int64_t rows, cols;
  void* out;
  int64_t out_stride;
  int32_t dtype;
};

struct ActivationArgs {
  const void* x;
  int64_t x_stride, rows, cols;
  void* out;
  int64_t out_stride;
  int32_t dtype, epilogue;
};

struct RotateArgs {
  void* query;
  int64_t query_stride;
  void* key;
  int64_t key_stride;
  const void* value;
  int64_t value_stride;
  int32_t dtype;
  int64_t num_tokens;
  int32_t num_q_heads, num_kv_heads, head_size;
  const void *q_norm, *k_norm;
  int32_t norm_dtype;
  float norm_offset, eps;
  const int64_t* positions;
  const float* cos_sin;
  int32_t rotary_size, is_neox;
  void *key_cache, *value_cache;
  int64_t block_stride;
  int32_t block_size;
  const int64_t* slot_mapping;
};

struct AttentionArgs {
  const void* query;
  int64_t query_stride;
  void* out;
  int64_t out_stride;
  int32_t dtype;
  const void *key_cache, *value_cache;
  int64_t block_stride;
  int32_t block_size, num_q_heads, num_kv_heads, head_size, num_reqs;
  const int32_t *cu_query_lens, *seq_lens, *block_table;
  int64_t block_table_stride;
  float scale, softcap;
  int32_t window, is_causal;
  const float* sinks;
};

// Rows of logits [rows, vocab], a token or a filter a row.
struct SampleArgs {
  float* logits;
  int64_t stride, rows, vocab;
  float* values;            // most_likely: the greatest logit
  int64_t* tokens;          // most_likely, draw_tokens
  const double* uniforms;   // draw_tokens
  const int32_t* top_k;     // keep_likely: 0 is off
  const float *top_p, *min_p;  // keep_likely: 1 and 0 are off
};

// Each returns a PgkStatus (PGK_OK or PGK_OUT_OF_MEMORY); arguments have been checked.
struct KernelTable {
  int32_t (*pack_rows)(const PackArgs&);
  int32_t (*gather_packed)(const GatherPackedArgs&);
  int32_t (*linear)(const LinearArgs&);
  int32_t (*rms_norm)(const NormArgs&);
  int32_t (*gated_activation)(const ActivationArgs&);
  int32_t (*rotate_and_write)(const RotateArgs&);
  int32_t (*paged_attention)(const AttentionArgs&);
  int32_t (*most_likely)(const SampleArgs&);
  int32_t (*draw_tokens)(const SampleArgs&);
  int32_t (*keep_likely)(const SampleArgs&);
};

#define PGK_DECLARE_ISA(name)                         \
  namespace name {                                    \
  int32_t pack_rows(const PackArgs&);                 \
  int32_t gather_packed(const GatherPackedArgs&);     \
  int32_t linear(const LinearArgs&);                  \
  int32_t rms_norm(const NormArgs&);                  \
  int32_t gated_activation(const ActivationArgs&);    \
  int32_t rotate_and_write(const RotateArgs&);        \
  int32_t paged_attention(const AttentionArgs&);      \
  int32_t most_likely(const SampleArgs&);             \
  int32_t draw_tokens(const SampleArgs&);             \
  int32_t keep_likely(const SampleArgs&);             \
  }
PGK_DECLARE_ISA(portable)
PGK_DECLARE_ISA(avx2)
PGK_DECLARE_ISA(avx512)
PGK_DECLARE_ISA(avx512_bf16)
PGK_DECLARE_ISA(amx_bf16)
PGK_DECLARE_ISA(amx_emulated)
#undef PGK_DECLARE_ISA

// The table of an instruction set, or null when it was not compiled in.
const KernelTable* kernel_table(int32_t isa);

}  // namespace pgk
