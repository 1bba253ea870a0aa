// A run of decoder layers through the library's own C functions, one after the other.
#include "errors.h"
#include "pegboard_kernels.h"

namespace {

// Where a layer's intermediate results lie in the step's workspace, and how wide their rows are.
struct Buffers {
  char *product, *attended, *gated;
  int64_t product_size, attended_size;

  Buffers(const PgkDecoder& d, const PgkStep& step) {
    const int64_t size = d.dtype == PGK_BF16 ? 2 : 4;
    product_size = static_cast<int64_t>(d.num_q_heads + 2 * d.num_kv_heads) * d.head_size;
    attended_size = static_cast<int64_t>(d.num_q_heads) * d.head_size;
    product = static_cast<char*>(step.workspace);
    attended = product + step.num_tokens * product_size * size;
    gated = attended + step.num_tokens * attended_size * size;
  }
};

#define PGK_DO(call)                            \
  do {                                          \
    const int32_t status = (call);              \
    if (status != PGK_OK) return status;        \
  } while (false)

int32_t multiply(const PgkDecoder& d, const PgkStep& step, int64_t n, int64_t k, const void* packed, const float* bias,
                 const void* x, void* out, int32_t epilogue) {
  const int64_t outputs = epilogue == PGK_NONE ? n : n / 2;
  return pgk_linear(d.dtype, n, k, packed, bias, x, d.dtype, k, step.num_tokens, out, d.dtype, outputs, epilogue);
}

int32_t attend(const PgkDecoder& d, const PgkLayer& layer, const PgkStep& step, const Buffers& buffers) {
  const int64_t size = d.dtype == PGK_BF16 ? 2 : 4;
  const int64_t kv_size = static_cast<int64_t>(d.num_kv_heads) * d.head_size;
  char* key = buffers.product + buffers.attended_size * size;
  const PgkStepGroup& group = step.groups[layer.group];
  PGK_DO(pgk_rotate_and_write(buffers.product, buffers.product_size, key, buffers.product_size, key + kv_size * size,
                              buffers.product_size, d.dtype, step.num_tokens, d.num_q_heads, d.num_kv_heads, d.head_size,
                              layer.q_norm, layer.k_norm, PGK_F32, 0.0f, layer.head_eps, step.positions, layer.cos_sin,
                              layer.max_position, layer.rotary_size, layer.is_neox, layer.key_cache, layer.value_cache,
                              layer.block_stride, d.block_size, group.slot_mapping, layer.num_blocks * d.block_size));
  return pgk_paged_attention(buffers.product, buffers.product_size, buffers.attended, buffers.attended_size, d.dtype,
                             layer.key_cache, layer.value_cache, layer.block_stride, d.block_size, d.num_q_heads,
                             d.num_kv_heads, d.head_size, step.num_reqs, step.cu_query_lens, step.seq_lens,
                             group.block_table, group.block_table_stride, layer.scale, layer.softcap, layer.window, 1,
                             layer.sinks);
}

int32_t normalise(const PgkDecoder& d, const PgkStep& step, const float* weight, float eps, bool adds) {
  const int64_t hidden = d.hidden_size;
  return pgk_rms_norm(adds ? step.x : step.residual, hidden, adds ? step.residual : nullptr, hidden, weight, PGK_F32, 0.0f,
                      eps, step.num_tokens, hidden, step.x, hidden, d.dtype);
}

int32_t run_layer(const PgkDecoder& d, const PgkLayer& layer, const PgkStep& step, const Buffers& buffers, bool adds) {
  PGK_DO(normalise(d, step, layer.input_norm, layer.eps, adds));
  PGK_DO(multiply(d, step, buffers.product_size, d.hidden_size, layer.qkv, layer.qkv_bias, step.x, buffers.product,
                  PGK_NONE));
  PGK_DO(attend(d, layer, step, buffers));
  PGK_DO(multiply(d, step, d.hidden_size, buffers.attended_size, layer.output, layer.output_bias, buffers.attended, step.x,
                  PGK_NONE));
  PGK_DO(normalise(d, step, layer.mlp_norm, layer.eps, true));
  PGK_DO(multiply(d, step, 2 * static_cast<int64_t>(d.intermediate_size), d.hidden_size, layer.gate_up, layer.gate_up_bias,
                  step.x, buffers.gated, layer.epilogue));
  return multiply(d, step, d.hidden_size, d.intermediate_size, layer.down, layer.down_bias, buffers.gated, step.x, PGK_NONE);
}

}  // namespace

extern "C" int32_t pgk_decoder_layers(const PgkDecoder* decoder, const PgkLayer* layers, int32_t num_layers,
                                      const PgkStep* step) {
  if (decoder == nullptr || step == nullptr || (num_layers > 0 && layers == nullptr))
    return pgk::fail(PGK_BAD_ARGUMENT, "decoder_layers: a null pointer");
  if (step->num_tokens == 0) return PGK_OK;
  const Buffers buffers(*decoder, *step);
  for (int32_t i = 0; i < num_layers; ++i)
    PGK_DO(run_layer(*decoder, layers[i], *step, buffers, i > 0 || step->has_x != 0));
  return PGK_OK;
}
