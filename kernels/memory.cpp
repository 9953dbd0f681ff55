#include "kernels/memory.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "kernels/device_cuda.h"

namespace capstan::kernels {

namespace {

constexpr std::int64_t alignment = 64, gpu_alignment = 256;

/// now and peak of something, counted by many threads.
struct Count {
  std::atomic<std::int64_t> now{0}, peak{0};
  void add(std::int64_t bytes) {
    const std::int64_t sum = now.fetch_add(bytes) + bytes;
    std::int64_t most = peak.load();
    while (sum > most && !peak.compare_exchange_weak(most, sum)) {}
  }
  void restart() { peak = now.load(); }
};

/// One place's memory.
constexpr int most_purposes = 32;
struct Account {
  std::array<Count, most_purposes> bytes;
  Count all;
  std::atomic<std::int64_t> kept{0}, taken{0};
};

struct Purposes {
  std::mutex mutex;  // guards names
  std::array<const char*, most_purposes> names{"other"};
  std::atomic<int> count{1};
  std::array<Account, 2> places;

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

Account& account(MemoryPlace place) { return purposes().places[std::size_t(place)]; }

thread_local int purpose = 0;
thread_local bool gpu_reuse = true;

/// What is known of a piece.
struct Piece {
  std::int64_t bytes;
  int purpose;
  const void* queue;  // on the GPU: the stream that it was taken for
};
static_assert(sizeof(Piece) <= alignment);

/// The GPU's pieces by their address; the host's have theirs before them, in a line of its own.
struct GpuPieces {
  std::mutex mutex;
  std::unordered_map<void*, Piece> all;
};
GpuPieces& gpu_pieces() {
  static GpuPieces* const pieces = new GpuPieces;
  return *pieces;
}

Piece& piece_of(void* memory, MemoryPlace place) {
  if (place == MemoryPlace::host) return *reinterpret_cast<Piece*>(static_cast<char*>(memory) - alignment);
  const std::lock_guard lock(gpu_pieces().mutex);
  return gpu_pieces().all.at(memory);  // stays where it is when others come and go
}

/// Rounded up to a multiple of an eighth of its power of two.
std::int64_t rounded(std::int64_t bytes, MemoryPlace place) {
  if (place == MemoryPlace::gpu && !gpu_reuse) return bytes;
  const std::int64_t least = place == MemoryPlace::gpu ? gpu_alignment : alignment;
  const std::int64_t step = std::max(least, std::int64_t(std::bit_floor(std::uint64_t(bytes))) / 8);
  return (bytes + step - 1) / step * step;
}

void* take_from_system(std::int64_t bytes, MemoryPlace place) {
  void* memory = nullptr;
  if (place == MemoryPlace::gpu) {
    memory = take_device_memory(bytes);
  } else if (void* const block = std::aligned_alloc(alignment, std::size_t(bytes + alignment))) {
    memory = static_cast<char*>(block) + alignment;
  }
  if (!memory) return nullptr;
  ++account(place).taken;
  if (place == MemoryPlace::gpu) {
    const std::lock_guard lock(gpu_pieces().mutex);
    gpu_pieces().all[memory] = {};
  }
  return memory;
}

void give_to_system(void* memory, MemoryPlace place) {
  if (place == MemoryPlace::host) return std::free(static_cast<char*>(memory) - alignment);
  {
    const std::lock_guard lock(gpu_pieces().mutex);
    gpu_pieces().all.erase(memory);
  }
  give_device_memory(memory);
}

/// A thread's free pieces in one place, by queue and size.
template <MemoryPlace place> class Kept {
 public:
  Kept() = default;
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  ~Kept() {
    release();
    ended_ = true;
  }

  void* take(std::int64_t bytes, const void* queue) {
    const auto found = pieces_.find({queue, bytes});
    if (found == pieces_.end() || found->second.empty()) return nullptr;
    void* const memory = found->second.back();
    found->second.pop_back();
    count(-bytes);
    return memory;
  }
  void give(void* memory, const Piece& piece) {
    pieces_[{piece.queue, piece.bytes}].push_back(memory);
    count(piece.bytes);
  }
  /// Before more is taken from the system: what is kept for sizes that no longer come must not grow beside it.
  void make_room() {
    constexpr std::int64_t least = std::int64_t(64) << 20;
    if (bytes_ > std::max(least, account(place).all.peak / 2)) release();
  }
  void release() {
    for (const auto& [key, pieces] : pieces_)
      for (void* memory : pieces) give_to_system(memory, place);
    pieces_.clear();
    count(-bytes_);
  }
  /// The calling thread's; nullptr when it ends, and has let go of them.
  static Kept* of_thread() {
    static thread_local Kept pieces;
    return ended_ ? nullptr : &pieces;
  }

 private:
  void count(std::int64_t bytes) {
    bytes_ += bytes;
    account(place).kept += bytes;
  }

  std::map<std::pair<const void*, std::int64_t>, std::vector<void*>> pieces_;
  std::int64_t bytes_ = 0;
  static thread_local bool ended_;
};
template <MemoryPlace place> thread_local bool Kept<place>::ended_ = false;

[[noreturn]] void out_of_device_memory(std::int64_t bytes) {
  constexpr std::size_t named = 4;
  const DeviceRoom room = device_room();
  MemoryReport report = memory_report(MemoryPlace::gpu);
  std::ranges::sort(report.lines, std::greater(), &MemoryLine::now);
  std::string holders;
  for (std::size_t i = 0; i < std::min(named, report.lines.size()); ++i)
    holders += fmt::format("{}{} {}", i ? ", " : "", report.lines[i].name, report.lines[i].now);
  throw OutOfDeviceMemory(fmt::format(
      "out of device memory: {} bytes asked for ({}), {} of {} free; tensors of this process hold {} ({}): use more "
      "ranks, a smaller micro-batch, or train.recompute",
      bytes, purposes().names[std::size_t(purpose)], room.left, room.all, report.now, holders));
}

template <MemoryPlace place> void* take(std::int64_t bytes, bool from_kept) {
  bytes = rounded(bytes, place);
  const void* const queue = place == MemoryPlace::gpu ? device_queue() : nullptr;
  Kept<place>* const kept = Kept<place>::of_thread();
  void* memory = kept && from_kept ? kept->take(bytes, queue) : nullptr;
  if (!memory) {
    if (kept) kept->make_room();
    memory = take_from_system(bytes, place);
  }
  if (!memory && place == MemoryPlace::gpu) {  // what is kept may be as much as is missing
    if (kept) kept->release();
    memory = take_from_system(bytes, place);
    if (!memory) out_of_device_memory(bytes);
  }
  if (!memory) return nullptr;
  piece_of(memory, place) = {bytes, purpose, queue};
  account(place).bytes[std::size_t(purpose)].add(bytes);
  account(place).all.add(bytes);
  return memory;
}

template <MemoryPlace place> void give(void* memory) {
  const Piece piece = piece_of(memory, place);
  account(place).bytes[std::size_t(piece.purpose)].add(-piece.bytes);
  account(place).all.add(-piece.bytes);
  Kept<place>* const kept = Kept<place>::of_thread();
  if (!kept || (place == MemoryPlace::gpu && !gpu_reuse)) return give_to_system(memory, place);
  if (place == MemoryPlace::gpu && piece.queue != device_queue()) wait_for_device_queue();
  kept->give(memory, piece);
}

}  // namespace

MemoryPurpose::MemoryPurpose(const char* name) : before_(purpose) { purpose = purposes().find(name); }
MemoryPurpose::~MemoryPurpose() { purpose = before_; }

MemoryReport memory_report(MemoryPlace place) {
  Purposes& all = purposes();
  const Account& here = account(place);
  MemoryReport report;
  for (int i = 0; i < all.count; ++i) {
    const Count& bytes = here.bytes[std::size_t(i)];
    const std::lock_guard lock(all.mutex);
    if (bytes.peak > 0) report.lines.push_back({all.names[std::size_t(i)], bytes.now, bytes.peak});
  }
  report.now = here.all.now;
  report.peak = here.all.peak;
  report.kept = here.kept;
  report.taken = here.taken;
  return report;
}

void restart_memory_peaks(MemoryPlace place) {
  Account& here = account(place);
  for (Count& bytes : here.bytes) bytes.restart();
  here.all.restart();
}

namespace {

void* take_at(MemoryPlace place, std::int64_t bytes, bool from_kept) {
  if (bytes == 0) return nullptr;
  return place == MemoryPlace::gpu ? take<MemoryPlace::gpu>(bytes, from_kept)
                                   : take<MemoryPlace::host>(bytes, from_kept);
}

}  // namespace

void* take_memory(std::int64_t bytes, MemoryPlace place) { return take_at(place, bytes, true); }
void* take_lasting_memory(std::int64_t bytes, MemoryPlace place) { return take_at(place, bytes, false); }

void give_memory(void* memory, MemoryPlace place) {
  if (!memory) return;
  if (place == MemoryPlace::gpu) give<MemoryPlace::gpu>(memory);
  else give<MemoryPlace::host>(memory);
}

void release_kept_memory() {
  if (auto* const kept = Kept<MemoryPlace::host>::of_thread()) kept->release();
  if (auto* const kept = Kept<MemoryPlace::gpu>::of_thread()) kept->release();
}

void set_gpu_memory_reuse(bool reuse) { gpu_reuse = reuse; }

}  // namespace capstan::kernels
