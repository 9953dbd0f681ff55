#pragma once
// Where the memory of tensors comes from, and what it is for.
//
// What a thread frees it keeps, and gives to its next tensor of about that size: a training step takes nothing from the
// system after the first one. Sizes are rounded up by an eighth at most, so that there are few of them.
//
// On a GPU a piece that is freed may still be in use by kernels that are queued. It is given again only to the stream that it was
// taken for: what the next owner queues there comes after them. A thread that frees it while it works with another stream waits
// for that one first, since its kernels may use the piece, too; whoever used it on a third stream has ordered that one before. A
// thread works with one GPU, and who destroys a stream waits for it first.

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/check.h"

namespace capstan::kernels {

/// The host's memory, or that of the GPU which the calling thread works with.
enum class MemoryPlace : std::uint8_t { host, gpu };

/// The GPU has not as much memory as was asked for. Callers that can do with less may catch it.
class OutOfDeviceMemory : public Error {
 public:
  explicit OutOfDeviceMemory(const std::string& line) : Error(ExitCode::internal, line) {}
};

/// What the calling thread's tensors are for, until the end of the scope; scopes nest. `name` must live on (a literal).
class MemoryPurpose {
 public:
  explicit MemoryPurpose(const char* name);
  ~MemoryPurpose();
  MemoryPurpose(const MemoryPurpose&) = delete;
  MemoryPurpose& operator=(const MemoryPurpose&) = delete;

 private:
  int before_;
};

/// Bytes that tensors of one purpose hold, now and at most at one time.
struct MemoryLine {
  std::string name;
  std::int64_t now, peak;
};

/// Of this process, all its threads together, in one place.
struct MemoryReport {
  std::vector<MemoryLine> lines;  ///< in the order of first use
  std::int64_t now = 0, peak = 0;
  std::int64_t kept = 0;   ///< free, held for the next tensors
  std::int64_t taken = 0;  ///< pieces taken from the system so far
};
MemoryReport memory_report(MemoryPlace place = MemoryPlace::host);
/// Peaks are those of what is held from now on: before a measurement.
void restart_memory_peaks(MemoryPlace place = MemoryPlace::host);

/// 64-byte aligned (on the GPU 256-byte), of unspecified content, 0 bytes: nullptr. If there is none left: nullptr on the host;
/// on the GPU OutOfDeviceMemory, which says what was asked for, what is free, and who holds most.
void* take_memory(std::int64_t bytes, MemoryPlace place = MemoryPlace::host);
/// The same for what stays taken from step to step: no piece that the thread's tensors come back for is used up.
void* take_lasting_memory(std::int64_t bytes, MemoryPlace place = MemoryPlace::host);
void give_memory(void* memory, MemoryPlace place = MemoryPlace::host);
/// What the calling thread keeps goes back to the system, in both places: after a start-up whose sizes do not come again.
void release_kept_memory();
/// Of the calling thread, for the GPU. False, for tests: pieces are exactly as large as asked for, and nothing is kept, so that the
/// emulator (docs/simt.md) sees each access beyond a tensor, and each read of what nobody has written.
void set_gpu_memory_reuse(bool reuse);

}  // namespace capstan::kernels
