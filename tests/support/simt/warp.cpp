#include "tests/support/simt/warp.h"

#include <bit>
#include <string>

#include "tests/support/simt/machine.h"

namespace simt {

void warp_operation(const char* name, std::uint32_t mask, void* data, WarpStep step, bool orders_memory, Where where) {
  const OutsideKernel outside;
  machine().meet_warp(name, mask, data, step, orders_memory, where);
}

int block_barrier(const char* name, int value, Combine combine, Where where) {
  const OutsideKernel outside;
  const int values = machine().meet_block(name, value, where);
  switch (combine) {
    case Combine::none: break;
    case Combine::count: return values;
    case Combine::all: return values == machine().threads();
    case Combine::any: return values > 0;
  }
  return 0;
}

namespace {

struct Shuffled {
  std::uint64_t in, out;
  int source;
};

void shuffle_step(void* const (&of_lane)[32], std::uint32_t mask) {
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    Shuffled& lane = *static_cast<Shuffled*>(of_lane[std::countr_zero(rest)]);
    if (!(mask >> lane.source & 1))
      machine().refuse("shuffle from lane " + std::to_string(lane.source) + ", which is not in the mask");
    lane.out = static_cast<const Shuffled*>(of_lane[lane.source])->in;
  }
}

struct Voted {
  std::uint32_t predicate, out;
};

void ballot_step(void* const (&of_lane)[32], std::uint32_t mask) {
  std::uint32_t votes = 0;
  for (std::uint32_t i = 0; i < 32; ++i)
    if (of_lane[i]) votes |= static_cast<const Voted*>(of_lane[i])->predicate << i;
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1)
    static_cast<Voted*>(of_lane[std::countr_zero(rest)])->out = votes;
}

void match_step(void* const (&of_lane)[32], std::uint32_t) {
  for (void* const one : of_lane) {
    if (!one) continue;
    std::uint64_t equal = 0;
    for (std::size_t i = 0; i < 32; ++i)
      if (of_lane[i] && static_cast<const Shuffled*>(of_lane[i])->in == static_cast<const Shuffled*>(one)->in)
        equal |= std::uint64_t(1) << i;
    static_cast<Shuffled*>(one)->out = equal;
  }
}

}  // namespace

std::uint64_t shuffle(const char* name, std::uint32_t mask, std::uint64_t bits, int source, Where where) {
  Shuffled lane{bits, 0, source};
  warp_operation(name, mask, &lane, shuffle_step, false, where);
  return lane.out;
}

std::uint32_t ballot(const char* name, std::uint32_t mask, bool predicate, Where where) {
  Voted lane{predicate, 0};
  warp_operation(name, mask, &lane, ballot_step, false, where);
  return lane.out;
}

std::uint32_t match_any(std::uint32_t mask, std::uint64_t bits, Where where) {
  Shuffled lane{bits, 0, 0};
  warp_operation("__match_any_sync", mask, &lane, match_step, false, where);
  return static_cast<std::uint32_t>(lane.out);
}

int lane_of_thread() { return machine().thread() % warp_width; }

std::uint32_t active_lanes() { return machine().active_lanes(); }

void check_access(const void* address, std::size_t size, std::size_t alignment, Access access, const void* code) {
  if (reinterpret_cast<std::uintptr_t>(address) % alignment != 0) machine().misaligned(address, alignment, code);
  machine().access(address, size, access, code);
}

void check_atomic(const void* address, std::size_t size, const void* code) {
  const OutsideKernel outside;
  check_access(address, size, size, Access::atomic, code);
}

void* shared_memory(std::size_t bytes) {
  const OutsideKernel outside;
  return machine().shared_memory(bytes);
}

void copy_async_16(void* shared, const void* global, bool valid) {
  const OutsideKernel outside;
  machine().begin_copy(shared, global, valid);
}

void copy_async_commit() {
  const OutsideKernel outside;
  machine().commit_copies();
}

void copy_async_wait(int groups) {
  const OutsideKernel outside;
  machine().wait_copies(groups);
}

}  // namespace simt
