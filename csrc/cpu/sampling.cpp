// Choosing a token from rows of logits: the greatest, a draw, and the filters before a draw.
#include "pool.h"
#include "ranking.h"
#include "simd.h"
#include "tables.h"

namespace pgk {
namespace PGK_ISA {
namespace {

const float kNegInf = -__builtin_inff();
constexpr int kBlock = 256;      // weights summed in float32 before the sums go on in float64
constexpr int kBuckets = 2048;   // of the histogram that finds thresholds

// The row's values from c on, short rows filled up with -inf.
PGK_INLINE V row_at(const float* row, int64_t c, int64_t vocab) {
  return vocab - c >= kLanes ? load(row + c) : keep_range(load_as(row + c, vocab - c), 0, static_cast<int>(vocab - c), kNegInf);
}

struct Greatest {
  float value;
  bool has_nan;
};

Greatest greatest_of(const float* row, int64_t vocab) {
  V top = set1(kNegInf);
  bool has_nan = false;
  for (int64_t c = 0; c < vocab; c += kLanes) {
    const V x = row_at(row, c, vocab);
    has_nan |= any_nan(x);
    top = max(x, top);
  }
  return Greatest{max_lanes(top), has_nan};
}

void most_likely_row(const SampleArgs& args, int64_t r) {
  const float* row = args.logits + r * args.stride;
  const Greatest greatest = greatest_of(row, args.vocab);
  int64_t index = 0;
  if (greatest.has_nan) {
    while (row[index] == row[index]) ++index;
  } else {
    for (int64_t c = 0; c < args.vocab; c += kLanes) {
      const int lane = first_equal(row_at(row, c, args.vocab), greatest.value);
      if (lane == kLanes) continue;
      index = c + lane;
      break;
    }
  }
  args.values[r] = row[index];
  args.tokens[r] = index;
}

// exp(x - top) for 16 entries; 0 for -inf, also where everything is.
PGK_INLINE V weights_at(const float* row, int64_t c, int64_t vocab, V top) { return exp(sub(row_at(row, c, vocab), top)); }

float block_sum(const float* row, int64_t begin, int64_t vocab, V top) {
  V total = set1(0.0f);
  const int64_t end = min_of(begin + kBlock, vocab);
  for (int64_t c = begin; c < end; c += kLanes) total = add(total, weights_at(row, c, vocab, top));
  return sum_lanes(total);
}

void draw_row(const SampleArgs& args, int64_t r, double* upto) {
  const float* row = args.logits + r * args.stride;
  const V top = set1(greatest_of(row, args.vocab).value);
  const int64_t blocks = ceil_div(args.vocab, kBlock);
  double total = 0.0;
  for (int64_t b = 0; b < blocks; ++b) upto[b] = total += static_cast<double>(block_sum(row, b * kBlock, args.vocab, top));
  const double target = args.uniforms[r] * total;
  int64_t block = 0;
  while (block < blocks - 1 && !(upto[block] > target)) ++block;
  const double rest = target - (block > 0 ? upto[block - 1] : 0.0);
  const int64_t begin = block * kBlock;
  const int64_t count = min_of<int64_t>(kBlock, args.vocab - begin);
  alignas(64) float weights[kBlock];
  for (int64_t i = 0; i < count; i += kLanes) store(weights + i, weights_at(row, begin + i, args.vocab, top));
  int64_t chosen = 0;  // the last with a weight, should rounding leave no other
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    if (weights[i] > 0.0f) chosen = i;
    sum += static_cast<double>(weights[i]);
    if (sum > rest) break;
  }
  args.tokens[r] = begin + chosen;
}

// A row's entries counted and weighed by how far they lie below the greatest.
class Histogram {
 public:
  Histogram(const float* row, int64_t vocab, float top, float least)
      : row_(row), vocab_(vocab), top_(top), scale_(top > least ? static_cast<float>(kBuckets - 1) / (top - least) : 0.0f) {}

  void fill(int32_t* counts, double* masses) const {
    __builtin_memset(counts, 0, kBuckets * sizeof(int32_t));
    __builtin_memset(masses, 0, kBuckets * sizeof(double));
    alignas(64) int32_t bucket[kLanes];
    alignas(64) float weight[kLanes];
    for (int64_t c = 0; c < vocab_; c += kLanes) {
      store_int(bucket, buckets_at(c));
      store(weight, weights_at(row_, c, vocab_, set1(top_)));
      const int64_t lanes = min_of<int64_t>(kLanes, vocab_ - c);
      for (int64_t i = 0; i < lanes; ++i) {
        counts[bucket[i]] += row_[c + i] > kNegInf ? 1 : 0;
        masses[bucket[i]] += static_cast<double>(weight[i]);
      }
    }
  }

  // Copies the entries of one bucket that are at least `floor`; returns how many.
  int64_t collect(int32_t wanted, float floor, float* to) const {
    int64_t count = 0;
    alignas(64) int32_t bucket[kLanes];
    for (int64_t c = 0; c < vocab_; c += kLanes) {
      const V places = buckets_at(c);
      store_int(bucket, places);
      const int64_t lanes = min_of<int64_t>(kLanes, vocab_ - c);
      for (int64_t i = 0; i < lanes; ++i) {
        to[count] = row_[c + i];
        count += bucket[i] == wanted && row_[c + i] >= floor && row_[c + i] > kNegInf ? 1 : 0;
      }
    }
    return count;
  }

 private:
  V buckets_at(int64_t c) const {
    const V below = mul(sub(set1(top_), row_at(row_, c, vocab_)), set1(scale_));
    return min(below, set1(static_cast<float>(kBuckets - 1)));  // -inf falls in the last
  }

  const float* row_;
  int64_t vocab_;
  float top_, scale_;
};

// The least value, but no further than kSpan below the greatest: with it, it spans the histogram.
constexpr float kSpan = 40.0f;
float span_floor(const float* row, int64_t vocab, float top) {
  V least = set1(top);
  for (int64_t c = 0; c < vocab; c += kLanes) least = min(least, max(row_at(row, c, vocab), set1(top - kSpan)));
  return -max_lanes(sub(set1(0.0f), least));
}

void drop_below(float* row, int64_t vocab, float threshold) {
  for (int64_t c = 0; c < vocab; c += kLanes) {
    const V x = row_at(row, c, vocab);
    store_as(row + c, select_less(x, set1(threshold), set1(kNegInf), x), vocab - c);
  }
}

// Thresholds of one row: `kth` is the least value that top-k keeps (-inf for all), in bucket `bucket`.
class RowFilter {
 public:
  RowFilter(const float* row, int64_t vocab, float top, char* space)
      : histogram_(row, vocab, top, span_floor(row, vocab, top)),
        top_(top),
        masses_(reinterpret_cast<double*>(space)),
        counts_(reinterpret_cast<int32_t*>(space + kBuckets * sizeof(double))),
        values_(reinterpret_cast<float*>(space + kBuckets * (sizeof(double) + sizeof(int32_t)))) {
    histogram_.fill(counts_, masses_);
  }
  static int64_t space_bytes(int64_t vocab) {
    return kBuckets * static_cast<int64_t>(sizeof(double) + sizeof(int32_t)) + (vocab + kLanes) * 4;
  }

  float top_k(int64_t k) {
    int64_t before = 0;
    for (int32_t b = 0; b < kBuckets; ++b) {
      if (before + counts_[b] < k) {
        before += counts_[b];
        continue;
      }
      const int64_t count = histogram_.collect(b, kNegInf, values_);
      kth_ = kth_greatest(values_, count, k - before);
      last_ = b;
      masses_[b] = 0.0;  // of the bucket's entries, what is left
      for (int64_t i = 0; i < count; ++i)
        if (values_[i] >= kth_) masses_[b] += weight_of(values_[i]);
      break;
    }
    return kth_;
  }

  // The least value of the fewest greatest ones whose weights sum to p of what top-k left.
  float top_p(double p) {
    double mass = 0.0, before = 0.0;
    for (int32_t b = 0; b <= last_; ++b) mass += masses_[b];
    const double target = mass * p;
    for (int32_t b = 0; b <= last_; ++b) {
      if (before + masses_[b] < target) {
        before += masses_[b];
        continue;
      }
      const int64_t count = histogram_.collect(b, kth_, values_);
      if (count == 0) continue;
      sort_descending(values_, count);
      float threshold = values_[0];
      for (int64_t i = 0; i < count && before < target; ++i) {
        threshold = values_[i];
        before += weight_of(values_[i]);
      }
      return threshold;
    }
    return kth_;
  }

 private:
  double weight_of(float value) const {
    float weight[kLanes];
    store(weight, exp(sub(set1(value), set1(top_))));
    return static_cast<double>(weight[0]);
  }

  Histogram histogram_;
  float top_;
  double* masses_;
  int32_t* counts_;
  float* values_;
  float kth_ = kNegInf;
  int32_t last_ = kBuckets - 1;
};

void keep_row(const SampleArgs& args, int64_t r, char* space) {
  float* row = args.logits + r * args.stride;
  const Greatest greatest = greatest_of(row, args.vocab);
  const float top = greatest.value;
  if (greatest.has_nan || !(__builtin_fabsf(top) < -kNegInf)) return;  // nothing to draw from: the draw's caller says so
  if (args.min_p[r] > 0.0f) drop_below(row, args.vocab, top + __builtin_logf(args.min_p[r]));
  const bool has_k = args.top_k[r] > 0 && args.top_k[r] < args.vocab, has_p = args.top_p[r] < 1.0f;
  if (!has_k && !has_p) return;
  RowFilter filter(row, args.vocab, top, space);
  float threshold = has_k ? filter.top_k(args.top_k[r]) : kNegInf;
  if (has_p) threshold = filter.top_p(static_cast<double>(args.top_p[r]));
  drop_below(row, args.vocab, threshold);
}

// Runs `body(row, space)` for all rows, each with `bytes` of scratch of its thread.
template <class F>
int32_t each_row(int64_t rows, int64_t bytes, F body) {
  bool failed = false;
  parallel_for(static_cast<int32_t>(rows), [&](int32_t r) {
    char* space = static_cast<char*>(scratch(kScratchTile, bytes));
    if (space == nullptr) {
      __atomic_store_n(&failed, true, __ATOMIC_RELAXED);
    } else {
      body(r, space);
    }
  });
  return failed ? PGK_OUT_OF_MEMORY : PGK_OK;
}

}  // namespace

int32_t most_likely(const SampleArgs& args) {
  parallel_for(static_cast<int32_t>(args.rows), [&](int32_t r) { most_likely_row(args, r); });
  return PGK_OK;
}

int32_t draw_tokens(const SampleArgs& args) {
  return each_row(args.rows, ceil_div(args.vocab, kBlock) * 8,
                  [&](int64_t r, char* space) { draw_row(args, r, reinterpret_cast<double*>(space)); });
}

int32_t keep_likely(const SampleArgs& args) {
  return each_row(args.rows, RowFilter::space_bytes(args.vocab),
                  [&](int64_t r, char* space) { keep_row(args, r, space); });
}

}  // namespace PGK_ISA
}  // namespace pgk
