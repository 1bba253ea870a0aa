// Paged attention for a mixed batch of prefill, chunks and decode.
//
// The query heads of a group share the loads of their key head: a tile is up to 48 (token, head) rows of one request
// and one key head. The cache is walked in splits of 256 tokens at fixed places of the sequence; each split yields
// (maximum, sum, weighted values) in float32 and they are merged in order. Splits of a request with a single tile (a
// decode) may run in parallel. Places and order depend on the sequence alone, so a token's bits do not depend on
// threads, on the batch or on how its prompt was chunked.
// Source: online softmax, Milakov and Gimelshein 2018 (arXiv 1805.02867); split decode as in Flash-Decoding.
#include "kv_layout.h"
#include "pool.h"
#include "products.h"
#include "tables.h"

namespace pgk {
namespace PGK_ISA {
namespace {

constexpr int64_t kTileRows = 48;
constexpr int64_t kSplit = 256;
const float kNegInf = -__builtin_inff();

struct Item {
  int32_t req, kv_head;
  int64_t row;    // first (token, head) row of the tile
  int64_t split;  // -1: all splits, finished here; else one split into `partial`
  int64_t partial;
};

PGK_INLINE int64_t gcd(int64_t a, int64_t b) {
  while (b != 0) {
    const int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

template <class T>
class Attention {
 public:
  explicit Attention(const AttentionArgs& args)
      : args_(args),
        group_(args.num_q_heads / args.num_kv_heads),
        segment_(gcd(args.block_size, kSplit)),
        place_{args.head_size, static_cast<int64_t>(args.block_size) * args.head_size},
        partial_size_(kTileRows * (args.head_size + 2)) {}

  int32_t run() {
    if (!plan()) return PGK_OUT_OF_MEMORY;
    parallel_for(static_cast<int32_t>(num_items_), [&](int32_t i) { run_item(items_[i]); });
    if (num_partials_ > 0) parallel_for(args_.num_reqs * args_.num_kv_heads, [&](int32_t i) { merge_request(i); });
    return failed_ ? PGK_OUT_OF_MEMORY : PGK_OK;
  }

 private:
  static constexpr int64_t kWidth = KvPlace<T>::kWidth;

  int64_t query_len(int64_t req) const { return args_.cu_query_lens[req + 1] - args_.cu_query_lens[req]; }
  int64_t rows_of(int64_t req) const { return query_len(req) * group_; }
  // First and past-the-last key a row may see.
  void key_range(int64_t req, int64_t row, int64_t* lo, int64_t* hi) const {
    const int64_t position = args_.seq_lens[req] - query_len(req) + row / group_;
    *hi = args_.is_causal ? position + 1 : args_.seq_lens[req];
    *lo = args_.window > 0 ? max_of<int64_t>(0, position - args_.window + 1) : 0;
  }
  void split_range(int64_t req, int64_t row, int64_t rows, int64_t* first, int64_t* last) const {
    int64_t lo, hi, unused;
    key_range(req, row, &lo, &unused);
    key_range(req, row + rows - 1, &unused, &hi);
    *first = lo / kSplit;
    *last = ceil_div(hi, kSplit);
  }
  bool is_split(int64_t req) const {
    if (rows_of(req) > kTileRows || rows_of(req) == 0) return false;
    int64_t first, last;
    split_range(req, 0, rows_of(req), &first, &last);
    return last - first > 1;
  }

  bool plan() {
    int64_t items = 0;
    for (int64_t req = 0; req < args_.num_reqs; ++req) {
      int64_t first = 0, last = 1;
      if (is_split(req)) split_range(req, 0, rows_of(req), &first, &last);
      items += (is_split(req) ? last - first : ceil_div(rows_of(req), kTileRows)) * args_.num_kv_heads;
    }
    items_ = static_cast<Item*>(scratch(kScratchPlan, (items + 1) * static_cast<int64_t>(sizeof(Item)) +
                                                          (args_.num_reqs + 1) * static_cast<int64_t>(sizeof(int64_t))));
    if (items_ == nullptr) return false;
    request_partial_ = reinterpret_cast<int64_t*>(items_ + items + 1);
    for (int32_t req = 0; req < args_.num_reqs; ++req) plan_request(req);
    if (num_partials_ == 0) return true;
    partials_ = static_cast<float*>(scratch(kScratchPartial, num_partials_ * partial_size_ * 4));
    return partials_ != nullptr;
  }

  void plan_request(int32_t req) {
    request_partial_[req] = num_partials_;
    if (is_split(req)) {
      int64_t first, last;
      split_range(req, 0, rows_of(req), &first, &last);
      for (int32_t head = 0; head < args_.num_kv_heads; ++head)
        for (int64_t split = first; split < last; ++split)
          items_[num_items_++] = Item{req, head, 0, split, num_partials_++};
      return;
    }
    // The last tiles of a prompt see most keys: they go first.
    for (int64_t tile = ceil_div(rows_of(req), kTileRows) - 1; tile >= 0; --tile)
      for (int32_t head = 0; head < args_.num_kv_heads; ++head)
        items_[num_items_++] = Item{req, head, tile * kTileRows, -1, 0};
  }

  // Scratch of one tile: query rows, scores, probabilities, the last (padded) values, and two sets of sums.
  struct Tile {
    T* query;
    float* scores;
    T* probabilities;
    T* tail;
    float* running;
    float* current;
  };

  bool make_tile(Tile* tile) {
    const int64_t head = args_.head_size;
    const int64_t bytes = kTileRows * head * 4 + kTileRows * kSplit * 8 + kSplit * head * 4 + 2 * partial_size_ * 4 + 6 * 64;
    char* at = static_cast<char*>(scratch(kScratchTile, bytes));
    if (at == nullptr) return false;
    auto take = [&at](int64_t size) {
      char* from = at;
      at += ceil_div(size, 64) * 64;
      return from;
    };
    tile->query = reinterpret_cast<T*>(take(kTileRows * head * static_cast<int64_t>(sizeof(T))));
    tile->scores = reinterpret_cast<float*>(take(kTileRows * kSplit * 4));
    tile->probabilities = reinterpret_cast<T*>(take(kTileRows * kSplit * static_cast<int64_t>(sizeof(T))));
    tile->tail = reinterpret_cast<T*>(take(segment_ * head * static_cast<int64_t>(sizeof(T))));
    tile->running = reinterpret_cast<float*>(take(partial_size_ * 4));
    tile->current = reinterpret_cast<float*>(take(partial_size_ * 4));
    return true;
  }

  // A partial is [kTileRows] maxima, [kTileRows] sums, [kTileRows][head_size] values.
  static float* maxima(float* partial) { return partial; }
  static float* sums(float* partial) { return partial + kTileRows; }
  static float* values(float* partial) { return partial + 2 * kTileRows; }

  void run_item(const Item& item) {
    Tile tile;
    if (!make_tile(&tile)) {
      __atomic_store_n(&failed_, true, __ATOMIC_RELAXED);
      return;
    }
    const int64_t rows = min_of(kTileRows, rows_of(item.req) - item.row);
    load_query(item, rows, tile.query);
    if (item.split >= 0) {
      run_split(item, rows, item.split, tile, partials_ + item.partial * partial_size_);
      return;
    }
    int64_t first, last;
    split_range(item.req, item.row, rows, &first, &last);
    run_split(item, rows, first, tile, tile.running);
    for (int64_t split = first + 1; split < last; ++split) {
      run_split(item, rows, split, tile, tile.current);
      merge(rows, tile.running, tile.current);
    }
    write_out(item.req, item.kv_head, item.row, rows, tile.running);
  }

  void load_query(const Item& item, int64_t rows, T* to) {
    const int64_t token = args_.cu_query_lens[item.req];
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = item.row + r;
      const T* from = static_cast<const T*>(args_.query) + (token + row / group_) * args_.query_stride +
                      (item.kv_head * group_ + row % group_) * args_.head_size;
      std::memcpy(to + r * args_.head_size, from, static_cast<size_t>(args_.head_size) * sizeof(T));
    }
  }

  const T* block_of(const void* cache, const Item& item, int64_t token) const {
    const int64_t block = args_.block_table[item.req * args_.block_table_stride + token / args_.block_size];
    return static_cast<const T*>(cache) + block * args_.block_stride + item.kv_head * place_.head_stride;
  }

  void run_split(const Item& item, int64_t rows, int64_t split, const Tile& tile, float* partial) {
    int64_t lo, hi, unused;
    key_range(item.req, item.row, &lo, &unused);
    key_range(item.req, item.row + rows - 1, &unused, &hi);
    const int64_t begin = max_of(split * kSplit, lo / segment_ * segment_);
    const int64_t end = min_of((split + 1) * kSplit, hi);
    if (end <= begin) {
      for (int64_t r = 0; r < rows; ++r) {
        maxima(partial)[r] = kNegInf;
        sums(partial)[r] = 0.0f;
      }
      return;
    }
    score(item, rows, begin, end, tile);
    // Values are taken in whole steps, and in whole tiles of 32 tokens where a segment has them.
    const int64_t padded = ceil_div(end - begin, min_of<int64_t>(segment_, 32)) * min_of<int64_t>(segment_, 32);
    softmax(item, rows, begin, end, padded, tile, partial);
    weigh(item, rows, begin, padded, tile, partial);
  }

  void score(const Item& item, int64_t rows, int64_t begin, int64_t end, const Tile& tile) {
    const T* panels[kSplit / kKeyGroup];
    int num_panels = 0;
    for (int64_t token = begin; token < end; token += kKeyGroup)
      panels[num_panels++] = block_of(args_.key_cache, item, token) + place_.key_group(token % args_.block_size);
    product_panels(tile.query, args_.head_size, rows, panels, num_panels, kKeyGroup * kWidth, args_.head_size / kWidth,
                   tile.scores, kSplit);
  }

  V logits(const float* scores) const {
    V x = mul(load(scores), set1(args_.scale));
    if (args_.softcap > 0.0f) x = mul(tanh(mul(x, set1(1.0f / args_.softcap))), set1(args_.softcap));
    return mul(x, set1(kLog2E));
  }

  // Scores to probabilities (relative to the row's maximum in this split), zero outside the row's range.
  void softmax(const Item& item, int64_t rows, int64_t begin, int64_t end, int64_t padded, const Tile& tile, float* partial) {
    for (int64_t r = 0; r < rows; ++r) {
      int64_t lo, hi;
      key_range(item.req, item.row + r, &lo, &hi);
      const int64_t from = max_of<int64_t>(lo - begin, 0), to = min_of(hi, end) - begin;
      float* scores = tile.scores + r * kSplit;
      T* out = tile.probabilities + r * kSplit;
      V top = set1(kNegInf);
      const int64_t first = from / kLanes * kLanes;
      for (int64_t c = first; c < to; c += kLanes) {
        const V x = keep_range(logits(scores + c), static_cast<int>(from - c), static_cast<int>(to - c), kNegInf);
        store(scores + c, x);
        top = max(top, x);
      }
      const float maximum = to > from ? max_lanes(top) : kNegInf;
      V total = set1(0.0f);
      for (int64_t c = 0; c < padded; c += kLanes) {
        V p = set1(0.0f);
        if (c >= first && c < to) {
          p = exp2(sub(load(scores + c), set1(maximum)));
          p = keep_range(p, static_cast<int>(from - c), static_cast<int>(to - c), 0.0f);
          total = add(total, p);
        }
        store_as(out + c, p);
      }
      maxima(partial)[r] = maximum;
      sums(partial)[r] = sum_lanes(total);
    }
  }

  void weigh(const Item& item, int64_t rows, int64_t begin, int64_t padded, const Tile& tile, float* partial) {
    const int64_t length = args_.seq_lens[item.req];
    const T* segments[kSplit / kKeyGroup];
    int64_t count = 0;
    for (int64_t token = begin; token < begin + padded; token += segment_, ++count) {
      const T* from = block_of(args_.value_cache, item, token) + place_.value_step(token % args_.block_size);
      const int64_t tokens = min_of(segment_, begin + padded - token);
      segments[count] = token + tokens <= length ? from : copy_tail(from, length - token, tokens, tile.tail);
    }
    product_segments(tile.probabilities, kSplit, rows, segments, segment_ / kWidth, padded / kWidth,
                     args_.head_size * kWidth, args_.head_size, values(partial), args_.head_size);
  }

  // Slots past the end of the sequence may hold anything, NaN too: they are replaced by zeros.
  const T* copy_tail(const T* from, int64_t valid, int64_t tokens, T* to) const {
    const int64_t step = args_.head_size * kWidth;
    const int64_t whole = valid / kWidth;
    std::memcpy(to, from, static_cast<size_t>(whole * step) * sizeof(T));
    std::memset(static_cast<void*>(to + whole * step), 0, static_cast<size_t>((tokens / kWidth - whole) * step) * sizeof(T));
    if (valid % kWidth != 0)
      for (int64_t d = 0; d < args_.head_size; ++d) to[whole * step + d * kWidth] = from[whole * step + d * kWidth];
    return to;
  }

  void merge(int64_t rows, float* into, float* from) const {
    for (int64_t r = 0; r < rows; ++r) {
      if (sums(from)[r] == 0.0f) continue;
      float* to = values(into) + r * args_.head_size;
      const float* add_from = values(from) + r * args_.head_size;
      const bool is_first = sums(into)[r] == 0.0f;
      const float top = is_first ? maxima(from)[r] : max_of(maxima(into)[r], maxima(from)[r]);
      const V keep = is_first ? set1(0.0f) : exp2(set1(maxima(into)[r] - top));
      const V take = exp2(set1(maxima(from)[r] - top));
      for (int64_t d = 0; d < args_.head_size; d += kLanes) {
        const int64_t lanes = args_.head_size - d;
        const V old = is_first ? set1(0.0f) : mul(load_as(to + d, lanes), keep);
        store_as(to + d, fma(load_as(add_from + d, lanes), take, old), lanes);
      }
      float scaled[kLanes];
      store(scaled, fma(set1(sums(from)[r]), take, mul(set1(sums(into)[r]), keep)));
      sums(into)[r] = scaled[0];
      maxima(into)[r] = top;
    }
  }

  void merge_request(int32_t index) {
    const int32_t req = index / args_.num_kv_heads, head = index % args_.num_kv_heads;
    if (!is_split(req)) return;
    int64_t first, last;
    split_range(req, 0, rows_of(req), &first, &last);
    float* running = partials_ + (request_partial_[req] + head * (last - first)) * partial_size_;
    for (int64_t i = 1; i < last - first; ++i) merge(rows_of(req), running, running + i * partial_size_);
    write_out(req, head, 0, rows_of(req), running);
  }

  // What the values of a row are multiplied with at the end: 1 / sum, a sink's share of the sum added.
  float normaliser(float maximum, float sum, int64_t head) const {
    if (args_.sinks == nullptr) return 1.0f / sum;
    const float sink = args_.sinks[head] * kLog2E;
    const float top = max_of(maximum, sink);
    float keep[kLanes], share[kLanes];
    store(keep, exp2(set1(maximum - top)));
    store(share, exp2(set1(sink - top)));
    return keep[0] / (sum * keep[0] + share[0]);
  }

  void write_out(int64_t req, int64_t kv_head, int64_t first, int64_t rows, float* partial) const {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = first + r;
      T* out = static_cast<T*>(args_.out) + (args_.cu_query_lens[req] + row / group_) * args_.out_stride +
               (kv_head * group_ + row % group_) * args_.head_size;
      const float sum = sums(partial)[r];
      const V factor = set1(normaliser(maxima(partial)[r], sum, kv_head * group_ + row % group_));
      for (int64_t d = 0; d < args_.head_size; d += kLanes) {
        const int64_t lanes = args_.head_size - d;
        const V value = sum == 0.0f ? set1(0.0f) : mul(load_as(values(partial) + r * args_.head_size + d, lanes), factor);
        store_as(out + d, value, lanes);
      }
    }
  }

  const AttentionArgs& args_;
  const int64_t group_;
  const int64_t segment_;  // tokens that lie together and never cross a block or a split
  const KvPlace<T> place_;
  const int64_t partial_size_;
  Item* items_ = nullptr;
  int64_t* request_partial_ = nullptr;
  float* partials_ = nullptr;
  int64_t num_items_ = 0, num_partials_ = 0;
  bool failed_ = false;
};

}  // namespace

int32_t paged_attention(const AttentionArgs& args) {
  return args.dtype == PGK_BF16 ? Attention<bf16>(args).run() : Attention<float>(args).run();
}

}  // namespace PGK_ISA
}  // namespace pgk
