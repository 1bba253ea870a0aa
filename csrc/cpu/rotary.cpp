// One pass over new tokens: norm of each head, rotation, and the write of key and value into the paged cache.
#include "kv_layout.h"
#include "pool.h"
#include "simd.h"
#include "tables.h"

namespace pgk {
namespace PGK_ISA {
namespace {

constexpr int kMaxHead = 1024;

template <class W>
void norm_head(float* head, const W* weight, const RotateArgs& args) {
  V squares = set1(0.0f);
  for (int c = 0; c < args.head_size; c += kLanes) {
    const V value = load_as(head + c, args.head_size - c);
    squares = fma(value, value, squares);
  }
  const float mean = sum_lanes(squares) / static_cast<float>(args.head_size);
  const V scale = set1(1.0f / __builtin_sqrtf(mean + args.eps));
  for (int c = 0; c < args.head_size; c += kLanes) {
    const int lanes = args.head_size - c;
    const V factor = add(load_as(weight + c, lanes), set1(args.norm_offset));
    store_as(head + c, mul(mul(load_as(head + c, lanes), scale), factor), lanes);
  }
}

void rotate_head(float* head, const float* cosines, const RotateArgs& args) {
  const int half = args.rotary_size / 2;
  const float* sines = cosines + half;
  if (args.is_neox) {
    for (int i = 0; i < half; i += kLanes) {
      const int lanes = half - i;
      const V c = load_as(cosines + i, lanes), s = load_as(sines + i, lanes);
      const V x = load_as(head + i, lanes), y = load_as(head + half + i, lanes);
      store_as(head + i, sub(mul(x, c), mul(y, s)), lanes);
      store_as(head + half + i, add(mul(y, c), mul(x, s)), lanes);
    }
    return;
  }
  for (int i = 0; i < half; ++i) {
    const float x = head[2 * i], y = head[2 * i + 1];
    head[2 * i] = x * cosines[i] - y * sines[i];
    head[2 * i + 1] = y * cosines[i] + x * sines[i];
  }
}

// The head in float32 after norm and rotation; stored back only when one of them changed it.
template <class T, class W>
void turn_head(T* data, const W* weight, const float* cosines, const RotateArgs& args, float* head) {
  for (int c = 0; c < args.head_size; c += kLanes) {
    const int lanes = args.head_size - c;
    store_as(head + c, load_as(data + c, lanes), lanes);
  }
  if (weight != nullptr) norm_head(head, weight, args);
  if (cosines != nullptr) rotate_head(head, cosines, args);
  if (weight == nullptr && cosines == nullptr) return;
  for (int c = 0; c < args.head_size; c += kLanes) {
    const int lanes = args.head_size - c;
    store_as(data + c, load_as(head + c, lanes), lanes);
  }
}

PGK_INLINE void write_key(bf16* group, int64_t lane, const float* head, int head_size) {
  alignas(64) bf16 rounded[kMaxHead];
  for (int d = 0; d < head_size; d += kLanes) store_as(rounded + d, load_as(head + d, head_size - d), head_size - d);
  for (int d = 0; d < head_size; d += 2) std::memcpy(group + (d / 2 * kKeyGroup + lane) * 2, rounded + d, 4);
}
PGK_INLINE void write_key(float* group, int64_t lane, const float* head, int head_size) {
  for (int d = 0; d < head_size; ++d) group[d * kKeyGroup + lane] = head[d];
}
PGK_INLINE void write_value(bf16* step, int64_t parity, const bf16* value, int head_size) {
  // Single stores: another thread may write the other token of the step.
  for (int d = 0; d < head_size; ++d) step[2 * d + parity] = value[d];
}
PGK_INLINE void write_value(float* step, int64_t, const float* value, int head_size) {
  std::memcpy(step, value, static_cast<size_t>(head_size) * 4);
}

template <class T, class W>
void token_pass(const RotateArgs& args, int64_t token) {
  alignas(64) float head[kMaxHead];
  const float* cosines = nullptr;
  if (args.positions != nullptr) cosines = args.cos_sin + args.positions[token] * args.rotary_size;
  if (args.query != nullptr && (args.q_norm != nullptr || cosines != nullptr)) {
    T* query = static_cast<T*>(args.query) + token * args.query_stride;
    for (int h = 0; h < args.num_q_heads; ++h)
      turn_head(query + static_cast<int64_t>(h) * args.head_size, static_cast<const W*>(args.q_norm), cosines, args, head);
  }
  if (args.key == nullptr) return;
  const int64_t slot = args.key_cache == nullptr ? -1 : args.slot_mapping[token];
  const KvPlace<T> place{args.head_size, static_cast<int64_t>(args.block_size) * args.head_size};
  for (int h = 0; h < args.num_kv_heads; ++h) {
    const int64_t head_offset = static_cast<int64_t>(h) * args.head_size;
    T* key = static_cast<T*>(args.key) + token * args.key_stride + head_offset;
    turn_head(key, static_cast<const W*>(args.k_norm), cosines, args, head);
    if (slot < 0) continue;
    const int64_t offset = slot % args.block_size;
    const int64_t base = slot / args.block_size * args.block_stride + h * place.head_stride;
    write_key(static_cast<T*>(args.key_cache) + base + place.key_group(offset), offset % kKeyGroup, head, args.head_size);
    const T* value = static_cast<const T*>(args.value) + token * args.value_stride + head_offset;
    write_value(static_cast<T*>(args.value_cache) + base + place.value_step(offset), offset % KvPlace<T>::kWidth, value,
                args.head_size);
  }
}

template <class T, class W>
void all_tokens(const RotateArgs& args) {
  parallel_for(static_cast<int32_t>(ceil_div(args.num_tokens, 4)), [&](int32_t chunk) {
    const int64_t end = min_of<int64_t>(args.num_tokens, (chunk + 1) * 4);
    for (int64_t token = chunk * 4; token < end; ++token) token_pass<T, W>(args, token);
  });
}

}  // namespace

int32_t rotate_and_write(const RotateArgs& args) {
  if (args.dtype == PGK_BF16) {
    args.norm_dtype == PGK_BF16 ? all_tokens<bf16, bf16>(args) : all_tokens<bf16, float>(args);
  } else {
    args.norm_dtype == PGK_BF16 ? all_tokens<float, bf16>(args) : all_tokens<float, float>(args);
  }
  return PGK_OK;
}

}  // namespace PGK_ISA
}  // namespace pgk
