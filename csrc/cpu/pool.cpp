#include "pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace pgk {
namespace {

inline void cpu_relax() {
#if defined(__x86_64__) || defined(_M_X64)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The job word: generation (high 24 bits), chunks (20), next chunk (20). A worker claims by compare-and-swap on the
// whole word, so a claim can only succeed while the fields it read belong to the same job.
constexpr int kShift = 20;
constexpr uint64_t kMask = (1u << kShift) - 1;
constexpr int32_t kMaxChunks = kMask - 1;

inline int32_t job_next(uint64_t word) { return static_cast<int32_t>(word & kMask); }
inline int32_t job_chunks(uint64_t word) { return static_cast<int32_t>((word >> kShift) & kMask); }
inline uint64_t job_generation(uint64_t word) { return word >> (2 * kShift); }
inline uint64_t job_word(uint64_t generation, int32_t chunks) {
  return (generation << (2 * kShift)) | (static_cast<uint64_t>(chunks) << kShift);
}

class Pool {
 public:
  int32_t size() const { return size_.load(std::memory_order_relaxed); }

  bool resize(int32_t num_threads, int32_t spin_us) {
    std::lock_guard<std::mutex> owner(owner_);
    spin_us_.store(spin_us, std::memory_order_relaxed);
    if (num_threads == size()) return true;
    stop_workers();
    bool complete = true;
    for (int32_t i = 1; i < num_threads && complete; ++i) {
      try {
        workers_.emplace_back([this] { work(); });
      } catch (const std::system_error&) {
        complete = false;
      }
    }
    size_.store(static_cast<int32_t>(workers_.size()) + 1, std::memory_order_relaxed);
    return complete;
  }

  void run(int32_t num_chunks, ChunkFn fn, void* context) {
    if (num_chunks <= 0) return;
    std::unique_lock<std::mutex> owner(owner_, std::defer_lock);
    if (num_chunks == 1 || size() == 1 || num_chunks > kMaxChunks || !owner.try_lock() || workers_.empty()) {
      for (int32_t i = 0; i < num_chunks; ++i) fn(context, i);
      return;
    }
    fn_.store(fn, std::memory_order_relaxed);
    context_.store(context, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    job_.store(job_word(++generation_, num_chunks), std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) {
      { std::lock_guard<std::mutex> lock(sleep_); }
      wake_.notify_all();
    }
    take_chunks();
    for (int32_t spins = 0; done_.load(std::memory_order_acquire) != num_chunks; ++spins) relax(spins);
  }

  // In a forked child the workers do not exist: forget them without joining.
  void forget_workers() {
    new (&workers_) std::vector<std::thread>();
    new (&owner_) std::mutex();
    new (&sleep_) std::mutex();
    new (&wake_) std::condition_variable();
    sleepers_.store(0);
    size_.store(1);
  }

 private:
  // Returns the generation of the job it found without chunks left.
  uint64_t take_chunks() {
    uint64_t word = job_.load(std::memory_order_acquire);
    while (job_next(word) < job_chunks(word)) {
      ChunkFn fn = fn_.load(std::memory_order_relaxed);
      void* context = context_.load(std::memory_order_relaxed);
      if (job_.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
        fn(context, job_next(word));
        done_.fetch_add(1, std::memory_order_acq_rel);
        word = job_.load(std::memory_order_acquire);
      }
    }
    return job_generation(word);
  }

  static void relax(int32_t spins) {
    if (spins < 2000) {
      cpu_relax();
    } else {
      std::this_thread::yield();  // the other side may need this very core
    }
  }

  void work() {
    using Clock = std::chrono::steady_clock;
    while (!stopping_.load(std::memory_order_acquire)) {
      const uint64_t seen = take_chunks();
      const auto deadline = Clock::now() + std::chrono::microseconds(spin_us_.load(std::memory_order_relaxed));
      bool found = false;
      for (int32_t spins = 0; !found; ++spins) {
        found = job_generation(job_.load(std::memory_order_acquire)) != seen || stopping_.load(std::memory_order_acquire);
        if (!found && (spins & 63) == 63) {
          if (Clock::now() >= deadline) break;
          std::this_thread::yield();
        }
        cpu_relax();
      }
      if (!found) sleep_past(seen);
    }
  }

  void sleep_past(uint64_t seen) {
    std::unique_lock<std::mutex> lock(sleep_);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    wake_.wait(lock, [&] { return job_generation(job_.load()) != seen || stopping_.load(); });
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

  void stop_workers() {
    {
      std::lock_guard<std::mutex> lock(sleep_);
      stopping_.store(true);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    stopping_.store(false);
  }

  alignas(64) std::atomic<uint64_t> job_{0};
  alignas(64) std::atomic<int32_t> done_{0};
  alignas(64) std::atomic<ChunkFn> fn_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int32_t> sleepers_{0};
  std::atomic<int32_t> spin_us_{50};
  std::atomic<int32_t> size_{1};
  std::atomic<bool> stopping_{false};
  uint64_t generation_ = 0;
  std::mutex owner_;  // held by the thread whose job runs, or that resizes
  std::mutex sleep_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

Pool& pool() {
  // Never destroyed: workers may outlive the static destructors of the process.
  static Pool* instance = [] {
    Pool* made = new Pool();
#if defined(__linux__)
    pthread_atfork(nullptr, nullptr, [] { pool().forget_workers(); });
#endif
    return made;
  }();
  return *instance;
}

struct ScratchBuffers {
  void* data[kScratchSlots] = {};
  int64_t bytes[kScratchSlots] = {};
  ~ScratchBuffers() {
    for (void* each : data) std::free(each);
  }
};

}  // namespace

int32_t pool_size() { return pool().size(); }
bool pool_resize(int32_t num_threads, int32_t spin_us) { return pool().resize(num_threads, spin_us); }
void pool_run(int32_t num_chunks, ChunkFn fn, void* context) { pool().run(num_chunks, fn, context); }

void* scratch(ScratchSlot slot, int64_t bytes) {
  thread_local ScratchBuffers buffers;
  if (buffers.bytes[slot] < bytes) {
    std::free(buffers.data[slot]);
    const int64_t rounded = (bytes + bytes / 4 + 4095) / 4096 * 4096;
    buffers.data[slot] = std::aligned_alloc(64, static_cast<size_t>(rounded));
    buffers.bytes[slot] = buffers.data[slot] == nullptr ? 0 : rounded;
  }
  return buffers.data[slot];
}

}  // namespace pgk
