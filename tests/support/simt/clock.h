#pragma once
// What happened before what, inside the launch that runs.
//
// One counter, `now`, is moved on by everything that orders memory accesses. An access is remembered with the value of its
// time, a tick; whether it is ordered before an access that is made now follows from the ticks of the last orderings.

#include <array>
#include <cstdint>

namespace simt {

using Tick = std::uint32_t;

constexpr int warp_width = 32;
constexpr int block_threads = 1024;  ///< at most

/// Several threads, or several warps, that cannot be told apart any more.
constexpr std::uint16_t several_threads = 0xffff;
constexpr std::uint8_t several_warps = 0xff;

class Clock {
 public:
  void begin_launch() { launch_ = tick(); }
  void begin_block() { block_ = barrier_ = tick(); }
  void pass_barrier() { barrier_ = tick(); }
  /// The lanes of `mask` have met: all that they, and whoever they met before, did is ordered before what they do next.
  void meet(int warp, std::uint32_t mask);

  Tick now() const { return now_; }
  Tick launch() const { return launch_; }  ///< earlier ticks: before this launch
  Tick block() const { return block_; }    ///< earlier ticks, of this launch: another block
  Tick barrier() const { return barrier_; }

  /// Whether what `thread` of this block did at `then` is ordered before what `self` does now.
  bool ordered(Tick then, std::uint16_t thread, int self) const {
    if (thread == self || then < barrier_) return true;
    if (thread == several_threads || thread / warp_width != self / warp_width) return false;
    return then < met(self, thread % warp_width);
  }
  /// The same for all lanes of `lanes`, all in the warp of `self`.
  bool ordered_lanes(Tick then, std::uint32_t lanes, int self) const;

 private:
  /// What that lane of the own warp did at earlier ticks is ordered before what `self` does now.
  Tick met(int self, int lane) const {
    const Tick whole = whole_warp_[static_cast<std::size_t>(self / warp_width)];
    const Tick pair = met_[static_cast<std::size_t>(self)][static_cast<std::size_t>(lane)];
    return whole > pair ? whole : pair;
  }
  Tick tick();

  Tick now_ = 1, launch_ = 1, block_ = 1, barrier_ = 1;
  std::array<Tick, block_threads / warp_width> whole_warp_{};      // the last time that all lanes met
  std::array<std::array<Tick, warp_width>, block_threads> met_{};  // [thread][lane]: the last time that they met
};

}  // namespace simt
