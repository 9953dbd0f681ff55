#include "tests/support/simt/machine.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string_view>
#include <utility>

#include "tests/support/simt/symbols.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace simt {

thread_local constinit bool in_kernel = false;

namespace {

std::string triple(unsigned x, unsigned y, unsigned z) {
  return "(" + std::to_string(x) + ", " + std::to_string(y) + ", " + std::to_string(z) + ")";
}

std::string text_of(std::source_location where) {
  return std::string(where.file_name()) + ":" + std::to_string(where.line());
}

uint3 coordinates(std::uint64_t index, dim3 extent) {
  return {static_cast<unsigned>(index % extent.x), static_cast<unsigned>(index / extent.x % extent.y),
          static_cast<unsigned>(index / extent.x / extent.y)};
}

/// 0, 1, … n - 1 in the order that is asked for.
template <class T> void put_in_order(std::vector<T>& items, std::size_t n, Order::Kind kind, std::mt19937_64& random) {
  items.resize(n);
  std::iota(items.begin(), items.end(), T(0));
  if (kind == Order::Kind::reverse) std::reverse(items.begin(), items.end());
  if (kind == Order::Kind::random) std::shuffle(items.begin(), items.end(), random);
}

}  // namespace

Machine& machine() {
  static Machine& only = *new Machine;  // never destroyed: threads that end late may still free memory
  return only;
}

Fault Machine::run(KernelCall& call, const Order& order) {
  call_ = &call;
  order_ = order;
  fault_ = {};
  random_.seed(order.seed);
  clock_.begin_launch();
  blockDim = call.block;
  gridDim = call.grid;
  count_ = static_cast<int>(call.block.x * call.block.y * call.block.z);
  std::vector<std::uint64_t> blocks;
  put_in_order(blocks, std::size_t(call.grid.x) * call.grid.y * call.grid.z, order.kind, random_);
  for (const std::uint64_t block : blocks) {
    run_block(block);
    if (fault_.kind != Fault::Kind::none) break;
  }
  call_ = nullptr;
  return fault_;
}

void Machine::run_block(std::uint64_t block) {
  blockIdx = coordinates(block, gridDim);
  clock_.begin_block();
  std::fill_n(shared_memory(0), call_->shared_bytes, std::byte{0xff});
  at_barrier_ = done_ = values_ = 0;
  warps_.fill({});
  for (int i = 0; i < count_; ++i) {
    Thread& thread = threads_[static_cast<std::size_t>(i)];
    // Tops lie apart by an odd number of cache lines, or all stacks would share the same few lines of the cache.
    thread.fibre.prepare(stacks_.top(i) - (i % 16) * 192, enter);
    thread.state = State::ready;
    warps_[static_cast<std::size_t>(i / warp_width)].exists |= 1u << i % warp_width;
    thread.copies.clear();
    thread.open_group = 0;
  }
  deal_turns();
  go_on(scheduler_);  // comes back when all threads have ended, or one has failed
  in_kernel = false;
  running_ = -1;
}

void Machine::deal_turns() {
  put_in_order(turns_, static_cast<std::size_t>(count_), order_.kind, random_);
  turn_ = turns_.size() - 1;
}

void Machine::enter() {
  in_kernel = true;
  machine().call_->run();
  in_kernel = false;
  machine().finish_thread();
}

void Machine::go_on(Fibre& from) {
  for (std::size_t i = 0; i < turns_.size(); ++i) {
    turn_ = turn_ + 1 == turns_.size() ? 0 : turn_ + 1;
    const int next = turns_[turn_];
    if (threads_[static_cast<std::size_t>(next)].state != State::ready) continue;
    running_ = next;
    threadIdx = coordinates(static_cast<std::uint64_t>(next), blockDim);
    Fibre::switch_to(from, threads_[static_cast<std::size_t>(next)].fibre);
    return;
  }
  fail(Fault::Kind::other, "all threads wait, and none can go on:" + waiting());
}

void Machine::finish_thread() {
  Thread& self = this->self();
  if (at_barrier_ > 0) fail(Fault::Kind::other, "divergent barrier: this thread ends while others wait:" + waiting());
  check_warp_needs_not("ends");
  if (!self.copies.empty()) fail(Fault::Kind::other, "ends while asynchronous copies are in flight (cp.async)");
  self.state = State::done;
  warp().done |= own_lane();
  if (++done_ == count_) Fibre::switch_to(self.fibre, scheduler_);
  go_on(self.fibre);
  __builtin_unreachable();  // nobody switches to a thread that has ended
}

void Machine::fail(Fault::Kind kind, const std::string& what) {
  fault_.kind = kind;
  fault_.text = "kernel " + function_at(call_->kernel) + ", block " + triple(blockIdx.x, blockIdx.y, blockIdx.z) +
                ", thread " + triple(threadIdx.x, threadIdx.y, threadIdx.z) + ": " + what;
  Fibre::switch_to(self().fibre, scheduler_);
  __builtin_unreachable();  // the threads of a launch that failed are never run again
}

std::string Machine::name_of(int thread) const {
  const uint3 at = coordinates(static_cast<std::uint64_t>(thread), blockDim);
  return triple(at.x, at.y, at.z);
}

std::string Machine::waiting() const {
  std::string text;
  const Thread* before = nullptr;
  for (int i = 0; i < count_; ++i) {  // threads that wait alike are named once, by the first of them
    const Thread& thread = threads_[static_cast<std::size_t>(i)];
    const bool waits = thread.state == State::at_barrier || thread.state == State::at_warp_operation;
    if (waits && !(before && before->waits_in == thread.waits_in && before->where.line() == thread.where.line()))
      text += " from thread " + name_of(i) + " on in " + thread.waits_in + " at " + text_of(thread.where) + ";";
    before = waits ? &thread : nullptr;
  }
  return text;
}

void Machine::check_warp_needs_not(const char* what) {
  if (warp().waiting == 0) return;
  for (int i = 0; i < warp_width; ++i)
    if ((warp().waiting >> i & 1) && (lane(i).mask & own_lane()) != 0)
      fail(Fault::Kind::other,
           std::string("divergent warp: this thread ") + what + " while lanes of its warp wait for it:" + waiting());
}

int Machine::meet_block(const char* name, int value, std::source_location where) {
  Thread& self = this->self();
  self.waits_in = name;
  self.where = where;
  if (done_ > 0)
    fail(Fault::Kind::other, "divergent barrier: waits in " + std::string(name) + " at " + text_of(where) + ", but " +
                                 std::to_string(done_) + " threads of the block have ended");
  if (at_barrier_ == 0) barrier_ = where;
  if (barrier_.line() != where.line() || std::string_view(barrier_.file_name()) != where.file_name())
    fail(Fault::Kind::other, "divergent barrier: waits in " + std::string(name) + " at " + text_of(where) +
                                 " while others wait elsewhere:" + waiting());
  check_warp_needs_not("waits at a barrier");
  values_ += value != 0;
  self.state = State::at_barrier;
  warp().at_barrier |= own_lane();
  if (++at_barrier_ == count_) release_barrier();
  else go_on(self.fibre);
  return barrier_values_;
}

void Machine::release_barrier() {
  clock_.pass_barrier();
  for (int i = 0; i < count_; ++i) threads_[static_cast<std::size_t>(i)].state = State::ready;
  for (Warp& warp : warps_) warp.at_barrier = 0;
  at_barrier_ = 0;
  barrier_values_ = std::exchange(values_, 0);
  if (order_.kind == Order::Kind::random) deal_turns();
}

void Machine::check_can_meet() {
  const std::uint32_t mask = self().mask;
  const auto refuse = [&](const char* why) {
    fail(Fault::Kind::other, "divergent warp: " + std::string(self().waits_in) + " at " + text_of(self().where) +
                                 ": its mask " + why + ":" + waiting());
  };
  if ((mask & own_lane()) == 0) refuse("does not name the lane that gives it");
  if ((mask & ~warp().exists) != 0) refuse("names a lane that the block does not have");
  if ((mask & warp().done) != 0) refuse("names a lane that has ended");
  if ((mask & warp().at_barrier) != 0) refuse("names a lane that waits at a barrier");
}

void Machine::check_all_agree() {
  const Thread& self = this->self();
  for (std::uint32_t rest = self.mask; rest != 0; rest &= rest - 1) {
    const Thread& other = lane(std::countr_zero(rest));
    if (other.mask != self.mask || std::string_view(other.waits_in) != self.waits_in)
      fail(Fault::Kind::other, "divergent warp: " + std::string(self.waits_in) + " at " + text_of(self.where) +
                                   " meets another operation or mask:" + waiting());
  }
}

void Machine::meet_warp(const char* name, std::uint32_t mask, void* data, WarpStep step, bool orders_memory,
                        std::source_location where) {
  Thread& self = this->self();
  self.waits_in = name;
  self.where = where;
  self.mask = mask;
  self.data = data;
  check_can_meet();
  self.state = State::at_warp_operation;
  warp().waiting |= own_lane();
  if ((warp().waiting & mask) == mask) finish_warp_operation(step, orders_memory);
  else go_on(self.fibre);
}

void Machine::finish_warp_operation(WarpStep step, bool orders_memory) {
  const std::uint32_t mask = self().mask;
  check_all_agree();
  if (orders_memory) clock_.meet(running_ / warp_width, mask);
  void* of_lane[warp_width];
  for (int i = 0; i < warp_width; ++i) of_lane[i] = (mask >> i & 1) ? lane(i).data : nullptr;
  step(of_lane, mask);
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) lane(std::countr_zero(rest)).state = State::ready;
  warp().waiting &= ~mask;
}

std::uint32_t Machine::active_lanes() const {
  const Warp& warp = warps_[static_cast<std::size_t>(running_ / warp_width)];
  return warp.exists & ~warp.done;
}

}  // namespace simt
