// The product over AMX tiles: 16 x 32 by 32 x 16 bfloat16 a step, two by two tiles of sums held.
//
// The tile instructions are named through `Tiles`, which exists twice: the hardware's, and a plain C++ emulation of
// the same eight registers so that this file's addressing can be tested on any machine. All row counts go through
// here, so that a row's bits do not depend on how many rows share a step.
#pragma once

#include "dot.h"

namespace pgk {
namespace PGK_ISA {

constexpr int64_t kTileSteps = 16;  // steps of two k a tile
constexpr int64_t kTileMaxRows = 16;

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64, "the processor reads 64 bytes");

// Registers: sums 0 and 1 belong to the first 16 rows (two panels), 2 and 3 to the next 16; 4 and 5 hold A, 6 and 7 B.
PGK_INLINE TileConfig tile_config(int64_t first_rows, int64_t second_rows) {
  TileConfig config;
  const int64_t rows[8] = {first_rows, first_rows, second_rows, second_rows, first_rows, second_rows, kTileSteps, kTileSteps};
  for (int t = 0; t < 8; ++t) {
    config.row_bytes[t] = 64;
    config.rows[t] = static_cast<uint8_t>(rows[t] > 0 ? rows[t] : kTileMaxRows);
  }
  return config;
}

#if PGK_ISA_LEVEL == 4
class Tiles {
 public:
  explicit Tiles(const TileConfig& config) {
    // Compilers' tile loads do not say that they read memory: what was stored before must be there by now.
    asm volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
#define PGK_TILE(t)                                                           \
  void zero##t() { _tile_zero(t); }                                           \
  void load##t(const void* p, int64_t stride_bytes) { _tile_loadd(t, p, stride_bytes); } \
  void store##t(void* p, int64_t stride_bytes) { _tile_stored(t, p, stride_bytes); }
  PGK_TILE(0) PGK_TILE(1) PGK_TILE(2) PGK_TILE(3) PGK_TILE(4) PGK_TILE(5) PGK_TILE(6) PGK_TILE(7)
#undef PGK_TILE
#define PGK_DOT(c, a, b) \
  void dot##c() { _tile_dpbf16ps(c, a, b); }
  PGK_DOT(0, 4, 6) PGK_DOT(1, 4, 7) PGK_DOT(2, 5, 6) PGK_DOT(3, 5, 7)
#undef PGK_DOT
};
#else
class Tiles {
 public:
  explicit Tiles(const TileConfig& config) : config_(config) {}
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
#define PGK_TILE(t)                                                           \
  void zero##t() { std::memset(data_[t], 0, sizeof(data_[t])); }              \
  void load##t(const void* p, int64_t stride_bytes) { load(t, p, stride_bytes); } \
  void store##t(void* p, int64_t stride_bytes) { store(t, p, stride_bytes); }
  PGK_TILE(0) PGK_TILE(1) PGK_TILE(2) PGK_TILE(3) PGK_TILE(4) PGK_TILE(5) PGK_TILE(6) PGK_TILE(7)
#undef PGK_TILE
#define PGK_DOT(c, a, b) \
  void dot##c() { dot(c, a, b); }
  PGK_DOT(0, 4, 6) PGK_DOT(1, 4, 7) PGK_DOT(2, 5, 6) PGK_DOT(3, 5, 7)
#undef PGK_DOT

 private:
  void load(int t, const void* p, int64_t stride_bytes) {
    for (int r = 0; r < config_.rows[t]; ++r)
      std::memcpy(data_[t][r], static_cast<const char*>(p) + r * stride_bytes, config_.row_bytes[t]);
  }
  void store(int t, void* p, int64_t stride_bytes) {
    for (int r = 0; r < config_.rows[t]; ++r)
      std::memcpy(static_cast<char*>(p) + r * stride_bytes, data_[t][r], config_.row_bytes[t]);
  }
  void dot(int c, int a, int b) {
    for (int r = 0; r < config_.rows[c]; ++r)
      for (int s = 0; s < config_.row_bytes[a] / 4; ++s)
        for (int lane = 0; lane < config_.row_bytes[c] / 4; ++lane) {
          bf16 x[2], w[2];
          float sum;
          std::memcpy(x, data_[a][r] + 4 * s, 4);
          std::memcpy(w, data_[b][s] + 4 * lane, 4);
          std::memcpy(&sum, data_[c][r] + 4 * lane, 4);
          sum += bf16_to_float(x[0]) * bf16_to_float(w[0]) + bf16_to_float(x[1]) * bf16_to_float(w[1]);
          std::memcpy(data_[c][r] + 4 * lane, &sum, 4);
        }
  }
  TileConfig config_;
  char data_[8][16][64] = {};
};
#endif

// `locate(panel, step)` is where the tile of 16 steps of a panel begins; its steps lie step_bytes apart.
template <class Locate>
PGK_INLINE void tile_products(const bf16* a, int64_t a_stride, int64_t rows, int64_t num_panels, int64_t steps,
                              int64_t step_bytes, float* c, int64_t c_stride, Ahead ahead, Locate locate) {
  const int64_t a_bytes = a_stride * 2, c_bytes = c_stride * 4;
  for (int64_t row = 0; row < rows; row += 2 * kTileMaxRows) {
    const int64_t first = min_of(kTileMaxRows, rows - row);
    const int64_t second = min_of(kTileMaxRows, rows - row - first);
    Tiles tiles(tile_config(first, second));
    for (int64_t p = 0; p < num_panels; p += 2) {
      const bool two_panels = p + 1 < num_panels;
      tiles.zero0();
      tiles.zero1();
      tiles.zero2();
      tiles.zero3();
      for (int64_t s = 0; s < steps; s += kTileSteps) {
        const bf16* from = a + row * a_stride + s * 2;
        if (ahead.at != nullptr)
          for (int64_t line = 0; line < kTileSteps * ahead.bytes; line += 64)
            __builtin_prefetch(ahead.at + s * ahead.bytes + line, 0, 2);
        tiles.load4(from, a_bytes);
        tiles.load6(locate(p, s), step_bytes);
        tiles.dot0();
        if (two_panels) {
          tiles.load7(locate(p + 1, s), step_bytes);
          tiles.dot1();
        }
        if (second > 0) {
          tiles.load5(from + kTileMaxRows * a_stride, a_bytes);
          tiles.dot2();
          if (two_panels) tiles.dot3();
        }
      }
      float* to = c + row * c_stride + p * kLanes;
      tiles.store0(to, c_bytes);
      if (two_panels) tiles.store1(to + kLanes, c_bytes);
      if (second > 0) {
        tiles.store2(to + kTileMaxRows * c_stride, c_bytes);
        if (two_panels) tiles.store3(to + kTileMaxRows * c_stride + kLanes, c_bytes);
      }
    }
    if (ahead.at != nullptr) ahead.at += steps * ahead.bytes;
  }
}

static void tile_panels(const bf16* a, int64_t a_stride, int64_t rows, const bf16* const* panels, int num_panels,
                        int64_t step_stride, int64_t steps, float* c, int64_t c_stride, Ahead ahead) {
  tile_products(a, a_stride, rows, num_panels, steps, step_stride * 2, c, c_stride, ahead,
                [=](int64_t panel, int64_t step) { return panels[panel] + step * step_stride; });
}

static void tile_segments(const bf16* a, int64_t a_stride, int64_t rows, const bf16* const* segments,
                          int64_t segment_steps, int64_t steps, int64_t step_stride, int64_t columns, float* c,
                          int64_t c_stride) {
  tile_products(a, a_stride, rows, columns / kLanes, steps, step_stride * 2, c, c_stride, Ahead(),
                [=](int64_t panel, int64_t step) {
                  return segments[step / segment_steps] + panel * kLanes * 2 + step % segment_steps * step_stride;
                });
}

}  // namespace PGK_ISA
}  // namespace pgk
