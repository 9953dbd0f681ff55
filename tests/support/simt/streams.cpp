#include "tests/support/simt/streams.h"

#include <algorithm>

#include "tests/support/simt/machine.h"

namespace simt {

cudaStream_t Streams::create(bool blocking) {
  streams_.push_back(std::make_shared<SimtStream>());
  streams_.back()->blocking = blocking;
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

void Streams::queue(const std::shared_ptr<SimtStream>& stream, std::function<cudaError_t()> run,
                    std::vector<Mark> after) {
  // The default stream waits for all that other streams have queued, and they for it (CUDA guide, "Default Stream").
  if (stream == streams_.front()) {
    for (const auto& other : streams_)
      if (other != stream && other->blocking) after.push_back(mark(other));
  } else if (stream->blocking) {
    after.push_back(mark(streams_.front()));
  }
  stream->queue.push_back({std::move(run), std::move(after)});
  ++stream->queued;
}

bool Streams::ready(const SimtStream& stream) const {
  return !stream.queue.empty() &&
         std::all_of(stream.queue.front().after.begin(), stream.queue.front().after.end(), reached);
}

cudaError_t Streams::run_next(SimtStream& stream) {
  const Operation next = std::move(stream.queue.front());
  stream.queue.pop_front();
  const cudaError_t status = next.run();
  ++stream.done;
  return status;
}

cudaError_t Streams::run_needed(const Mark& mark) {
  while (!reached(mark)) {
    for (const Mark& before : mark.stream->queue.front().after)
      if (const cudaError_t status = run_needed(before); status != cudaSuccess) return status;
    if (const cudaError_t status = run_next(*mark.stream); status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t Streams::run_others_first(const Mark& mark) {
  while (!reached(mark)) {
    SimtStream* next = nullptr;  // the last one that can go on and is not waited for; else the one that is
    for (const auto& stream : streams_)
      if (ready(*stream) && (stream != mark.stream || !next)) next = stream.get();
    if (const cudaError_t status = run_next(*next); status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t Streams::run_some(const Mark& mark) {
  while (!reached(mark)) {
    std::vector<SimtStream*> ready_ones;
    for (const auto& stream : streams_)
      if (ready(*stream)) ready_ones.push_back(stream.get());
    SimtStream& next = *ready_ones[random_() % ready_ones.size()];
    if (const cudaError_t status = run_next(next); status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t Streams::wait(const Mark& mark) {
  if (reached(mark)) return cudaSuccess;
  const DeviceMemory::Open open(machine().memory());
  switch (order_.kind) {
    case Order::Kind::forward: return run_needed(mark);
    case Order::Kind::reverse: return run_others_first(mark);
    case Order::Kind::random: return run_some(mark);
  }
  return cudaErrorInvalidValue;
}

cudaError_t Streams::wait_for_all() {
  const bool idle =
      std::all_of(streams_.begin(), streams_.end(), [](const auto& stream) { return stream->queue.empty(); });
  if (idle) return cudaSuccess;
  const DeviceMemory::Open open(machine().memory());
  const auto streams = streams_;
  for (const auto& stream : streams)
    if (const cudaError_t status = wait(mark(stream)); status != cudaSuccess) return status;
  std::erase_if(streams_, [&](const auto& stream) {  // destroyed and drained
    return stream != streams_.front() && std::find(handles_.begin(), handles_.end(), stream) == handles_.end();
  });
  return cudaSuccess;
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
