#include "tests/support/simt/streams.h"

#include <xmmintrin.h>

#include <algorithm>

#include "tests/support/simt/machine.h"

namespace simt {

namespace {

/// The device computes with denormal numbers, whatever the thread of the host does that happens to run its work.
class WithDenormals {
 public:
  WithDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ & ~(flush_to_zero | denormals_are_zero)); }
  ~WithDenormals() { _mm_setcsr(before_); }
  WithDenormals(const WithDenormals&) = delete;
  WithDenormals& operator=(const WithDenormals&) = delete;

 private:
  static constexpr unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040;
  unsigned before_;
};

}  // namespace

cudaStream_t Streams::create(bool blocking, int device) {
  forget_drained();
  streams_.push_back(std::make_shared<SimtStream>());
  streams_.back()->blocking = blocking;
  streams_.back()->device = device;
  handles_.push_back(streams_.back());
  return streams_.back().get();
}

std::shared_ptr<SimtStream> Streams::find(cudaStream_t handle) const {
  if (!handle) return streams_.front();
  for (const auto& stream : handles_)
    if (stream.get() == handle) return stream;
  return nullptr;
}

bool Streams::destroy(cudaStream_t handle) {
  return std::erase_if(handles_, [&](const auto& stream) { return stream.get() == handle; }) == 1;
}

void Streams::forget_drained() {
  std::erase_if(streams_, [&](const auto& stream) {
    return stream != streams_.front() && stream->queue.empty() &&
           std::find(handles_.begin(), handles_.end(), stream) == handles_.end();
  });
}

void Streams::queue(const std::shared_ptr<SimtStream>& stream, Operation operation) {
  // The default stream waits for all that other streams have queued, and they for it (CUDA guide, "Default Stream").
  if (stream == streams_.front()) {
    for (const auto& other : streams_)
      if (other != stream && other->blocking) operation.after.push_back(mark(other));
  } else if (stream->blocking) {
    operation.after.push_back(mark(streams_.front()));
  }
  stream->queue.push_back(std::move(operation));
  ++stream->queued;
}

const Mark* Streams::first_unreached(const Operation& operation) {
  for (const Mark& mark : operation.after)
    if (!reached(mark)) return &mark;
  if (operation.meeting)
    for (const Mark& mark : operation.meeting->after)
      if (!reached(mark)) return &mark;
  return nullptr;
}

bool Streams::ready(const SimtStream& stream) {
  if (stream.queue.empty()) return false;
  const Operation& next = stream.queue.front();
  return !first_unreached(next) && !(next.meeting && next.meeting->missing > 0);
}

cudaError_t Streams::run_next(SimtStream& stream) {
  const Operation next = std::move(stream.queue.front());
  stream.queue.pop_front();
  const cudaError_t status = next.run();
  ++stream.done;
  return status;
}

/// Stream after stream, each held up by the next one; the last one can run, lacks what nobody has queued, or is there twice.
std::vector<SimtStream*> Streams::chain(const Mark& mark) {
  std::vector<SimtStream*> streams{mark.stream.get()};
  while (const Mark* const before = first_unreached(streams.back()->queue.front())) {
    const bool again = std::find(streams.begin(), streams.end(), before->stream.get()) != streams.end();
    streams.push_back(before->stream.get());
    if (again) break;
  }
  return streams;
}

/// nullptr: nothing can run.
SimtStream* Streams::next_towards(const Mark& mark) {
  if (order_.kind == Order::Kind::forward) {
    SimtStream* const last = chain(mark).back();
    return ready(*last) ? last : nullptr;
  }
  std::vector<SimtStream*> ready_ones;
  for (const auto& stream : streams_)
    if (ready(*stream)) ready_ones.push_back(stream.get());
  if (ready_ones.empty()) return nullptr;
  if (order_.kind == Order::Kind::random) return ready_ones[random_() % ready_ones.size()];
  // The last one that is not waited for; else the one that is.
  for (auto stream = ready_ones.rbegin(); stream != ready_ones.rend(); ++stream)
    if (*stream != mark.stream.get()) return *stream;
  return mark.stream.get();
}

cudaError_t Streams::run_towards(const Mark& mark) {
  if (reached(mark)) return cudaSuccess;
  const DeviceMemory::Open open(machine().memory());
  const WithDenormals as_on_a_gpu;
  while (!reached(mark)) {
    SimtStream* const next = next_towards(mark);
    if (!next) return cudaSuccess;
    if (const cudaError_t status = run_next(*next); status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

std::vector<Mark> Streams::ends(int device) const {
  std::vector<Mark> marks;
  for (const auto& stream : streams_)
    if (stream->device == device && !stream->queue.empty()) marks.push_back(mark(stream));
  return marks;
}

std::string Streams::deadlock(const Mark& mark) const {
  const std::vector<SimtStream*> streams = chain(mark);
  const auto first = std::find(streams.begin(), streams.end(), streams.back());
  if (first + 1 == streams.end()) return "";
  std::string text;
  for (auto stream = first; stream + 1 != streams.end(); ++stream)
    if (const auto& meeting = (*stream)->queue.front().meeting) text += (text.empty() ? "" : "; ") + meeting->text;
  return text;
}

std::string Streams::missing() const {
  std::string text;
  for (const auto& stream : streams_)
    if (!stream->queue.empty())
      if (const auto& meeting = stream->queue.front().meeting; meeting && meeting->missing > 0)
        text += (text.empty() ? "" : "; ") + meeting->text;
  return text;
}

void Streams::set_order(const Order& order) {
  order_ = order;
  random_.seed(order.seed);
}

void Streams::drop_queued() {
  for (const auto& stream : streams_) {
    stream->queue.clear();
    stream->done = stream->queued;
  }
}

void Streams::clear() {
  streams_.assign(1, std::make_shared<SimtStream>());
  handles_.clear();
}

}  // namespace simt
