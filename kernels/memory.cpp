#include "kernels/memory.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "kernels/check.h"

namespace capstan::kernels {

namespace {

constexpr std::int64_t alignment = 64;

/// now and peak of something, counted by many threads.
struct Count {
  std::atomic<std::int64_t> now{0}, peak{0};
  void add(std::int64_t bytes) {
    const std::int64_t sum = now.fetch_add(bytes) + bytes;
    std::int64_t most = peak.load();
    while (sum > most && !peak.compare_exchange_weak(most, sum)) {}
  }
};

constexpr int most_purposes = 32;
struct Purposes {
  std::mutex mutex;  // guards names
  std::array<const char*, most_purposes> names{"other"};
  std::atomic<int> count{1};
  std::array<Count, most_purposes> bytes;
  Count all;
  std::atomic<std::int64_t> kept{0}, taken{0};

  int find(const char* name) {
    const std::lock_guard lock(mutex);
    for (int i = 0; i < count; ++i)
      if (std::strcmp(names[std::size_t(i)], name) == 0) return i;
    CAPSTAN_CHECK(count < most_purposes, "more than {} purposes of memory", most_purposes);
    names[std::size_t(count)] = name;
    return count++;
  }
};

/// Lives as long as the process: tensors of any static object may be freed after it.
Purposes& purposes() {
  static Purposes* const all = new Purposes;
  return *all;
}

thread_local int purpose = 0;

/// Before every piece, in a line of its own.
struct Header {
  std::int64_t bytes;  // behind the header
  int purpose;
};
static_assert(sizeof(Header) <= alignment);

Header& header_of(void* memory) { return *reinterpret_cast<Header*>(static_cast<char*>(memory) - alignment); }

/// Rounded up to a multiple of an eighth of its power of two.
std::int64_t rounded(std::int64_t bytes) {
  const std::int64_t step = std::max(alignment, std::int64_t(std::bit_floor(std::uint64_t(bytes))) / 8);
  return (bytes + step - 1) / step * step;
}

void* take_from_system(std::int64_t bytes) {
  char* const block = static_cast<char*>(std::aligned_alloc(alignment, std::size_t(bytes + alignment)));
  if (!block) return nullptr;
  ++purposes().taken;
  return block + alignment;
}

void give_to_system(void* memory) { std::free(static_cast<char*>(memory) - alignment); }

/// A thread's free pieces by size.
class Kept {
 public:
  Kept() = default;
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  ~Kept() {
    release();
    ended_ = true;
  }

  void* take(std::int64_t bytes) {
    const auto found = pieces_.find(bytes);
    if (found == pieces_.end() || found->second.empty()) return nullptr;
    void* const memory = found->second.back();
    found->second.pop_back();
    count(-bytes);
    return memory;
  }
  void give(void* memory, std::int64_t bytes) {
    pieces_[bytes].push_back(memory);
    count(bytes);
  }
  /// Before more is taken from the system: what is kept for sizes that no longer come must not grow beside it.
  void make_room() {
    constexpr std::int64_t least = std::int64_t(64) << 20;
    if (bytes_ > std::max(least, purposes().all.peak / 2)) release();
  }
  void release() {
    for (const auto& [bytes, pieces] : pieces_)
      for (void* memory : pieces) give_to_system(memory);
    pieces_.clear();
    count(-bytes_);
  }
  static bool ended() { return ended_; }

 private:
  void count(std::int64_t bytes) {
    bytes_ += bytes;
    purposes().kept += bytes;
  }

  std::map<std::int64_t, std::vector<void*>> pieces_;
  std::int64_t bytes_ = 0;
  static thread_local bool ended_;
};
thread_local bool Kept::ended_ = false;

Kept& kept() {
  static thread_local Kept pieces;
  return pieces;
}

}  // namespace

MemoryPurpose::MemoryPurpose(const char* name) : before_(purpose) { purpose = purposes().find(name); }
MemoryPurpose::~MemoryPurpose() { purpose = before_; }

MemoryReport memory_report() {
  Purposes& all = purposes();
  MemoryReport report;
  for (int i = 0; i < all.count; ++i) {
    const Count& bytes = all.bytes[std::size_t(i)];
    const std::lock_guard lock(all.mutex);
    if (bytes.peak > 0) report.lines.push_back({all.names[std::size_t(i)], bytes.now, bytes.peak});
  }
  report.now = all.all.now;
  report.peak = all.all.peak;
  report.kept = all.kept;
  report.taken = all.taken;
  return report;
}

namespace {

void* take(std::int64_t bytes, bool from_kept) {
  if (bytes == 0) return nullptr;
  bytes = rounded(bytes);
  void* memory = from_kept && !Kept::ended() ? kept().take(bytes) : nullptr;
  if (!memory) {
    if (!Kept::ended()) kept().make_room();
    memory = take_from_system(bytes);
  }
  if (!memory) return nullptr;
  header_of(memory) = {bytes, purpose};
  purposes().bytes[std::size_t(purpose)].add(bytes);
  purposes().all.add(bytes);
  return memory;
}

}  // namespace

void* take_memory(std::int64_t bytes) { return take(bytes, true); }
void* take_lasting_memory(std::int64_t bytes) { return take(bytes, false); }

void give_memory(void* memory) {
  if (!memory) return;
  const Header header = header_of(memory);
  purposes().bytes[std::size_t(header.purpose)].add(-header.bytes);
  purposes().all.add(-header.bytes);
  if (Kept::ended()) give_to_system(memory);
  else kept().give(memory, header.bytes);
}

void release_kept_memory() {
  if (!Kept::ended()) kept().release();
}

}  // namespace capstan::kernels
