// A small pool of worker threads for the kernels of one process.
//
// A job is a number of chunks claimed one by one; the calling thread takes part, and a job ends when its chunks are
// done, not when every worker has looked at it: a worker that sleeps or is preempted delays nobody. Workers spin
// (politely) for a short while after a job and then sleep. Results never depend on who runs a chunk.
#pragma once

#include <cstdint>

namespace pgk {

using ChunkFn = void (*)(void* context, int32_t chunk);

// Threads that take part in a job, the caller included.
int32_t pool_size();
// Returns false when threads cannot be started; the pool then has as many as could be.
bool pool_resize(int32_t num_threads, int32_t spin_us);
// Runs fn(context, 0..num_chunks-1). Falls back to the calling thread alone when another thread uses the pool.
void pool_run(int32_t num_chunks, ChunkFn fn, void* context);

template <class F>
inline void parallel_for(int32_t num_chunks, F&& body) {
  pool_run(
      num_chunks, [](void* context, int32_t chunk) { (*static_cast<F*>(context))(chunk); }, &body);
}

// A buffer of the calling thread, 64-byte aligned, kept and grown; slots are separate buffers. Null when out of memory.
enum ScratchSlot { kScratchInput = 0, kScratchTile = 1, kScratchPartial = 2, kScratchPlan = 3, kScratchSlots = 4 };
void* scratch(ScratchSlot slot, int64_t bytes);

}  // namespace pgk
