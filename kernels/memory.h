#pragma once
// Where the memory of tensors comes from, and what it is for.
//
// What a thread frees it keeps, and gives to its next tensor of about that size: a training step takes nothing from the
// system after the first one. Sizes are rounded up by an eighth at most, so that there are few of them.

#include <cstdint>
#include <string>
#include <vector>

namespace capstan::kernels {

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

/// Of this process, all its threads together.
struct MemoryReport {
  std::vector<MemoryLine> lines;  ///< in the order of first use
  std::int64_t now = 0, peak = 0;
  std::int64_t kept = 0;   ///< free, held for the next tensors
  std::int64_t taken = 0;  ///< pieces taken from the system so far
};
MemoryReport memory_report();

/// 64-byte aligned, of unspecified content, 0 bytes: nullptr; nullptr also if there is none left.
void* take_memory(std::int64_t bytes);
/// The same for what stays taken from step to step: no piece that the thread's tensors come back for is used up.
void* take_lasting_memory(std::int64_t bytes);
void give_memory(void* memory);
/// What the calling thread keeps goes back to the system: after a start-up whose sizes do not come again.
void release_kept_memory();

}  // namespace capstan::kernels
