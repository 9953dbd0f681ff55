#include "tests/simt/through_gpu.h"

#include <cstdlib>
#include <utility>

namespace capstan::tests {

namespace {

using kernels::Device;
using kernels::Tensor;
using kernels::View;
using parallel::Communicator;
using parallel::Message;
using parallel::Pending;

/// Empty messages stay on the host: they carry no bytes, but somebody may wait for them (barrier).
bool takes_the_way(const Message& message) { return message.data.bytes() > 0; }

struct Arrival {
  View host, gpu;
};

class GpuPending final : public Pending {
 public:
  GpuPending(std::vector<Tensor> buffers, std::vector<Arrival> arrivals, std::unique_ptr<Pending> inner)
      : buffers_(std::move(buffers)), arrivals_(std::move(arrivals)), inner_(std::move(inner)) {}
  void in_background() override { inner_->in_background(); }
  bool done() override { return inner_->done(); }
  void wait() override {
    inner_->wait();
    for (const Arrival& arrival : arrivals_) arrival.host.copy_from(arrival.gpu);
  }

 private:
  std::vector<Tensor> buffers_;
  std::vector<Arrival> arrivals_;
  std::unique_ptr<Pending> inner_;  // goes first
};

class ThroughGpu final : public Communicator {
 public:
  explicit ThroughGpu(Communicator& inner) : inner_(inner) {}
  explicit ThroughGpu(std::unique_ptr<Communicator> part) : part_(std::move(part)), inner_(*part_) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string backend() const override { return inner_.backend(); }

  std::unique_ptr<Pending> exchange(std::span<const Message> sends, std::span<const Message> receives) override {
    std::vector<Tensor> buffers;
    std::vector<Arrival> arrivals;
    const auto moved = [&](const Message& message) {
      if (!takes_the_way(message)) return message;
      buffers.emplace_back(message.data.shape(), message.data.type(), Device::cuda);
      return Message{buffers.back(), message.peer, message.tag};
    };
    std::vector<Message> gpu_sends, gpu_receives;
    for (const Message& send : sends) {
      gpu_sends.push_back(moved(send));
      if (takes_the_way(send)) gpu_sends.back().data.copy_from(send.data);
    }
    for (const Message& receive : receives) {
      gpu_receives.push_back(moved(receive));
      if (takes_the_way(receive)) arrivals.push_back({receive.data, gpu_receives.back().data});
    }
    auto inner = inner_.exchange(gpu_sends, gpu_receives);
    return std::make_unique<GpuPending>(std::move(buffers), std::move(arrivals), std::move(inner));
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<ThroughGpu>(inner_.split(color, key));
  }
  std::unique_ptr<Communicator> split_by_host() override {
    return std::make_unique<ThroughGpu>(inner_.split_by_host());
  }
  [[noreturn]] void abort(ExitCode code, const std::string& reason) override {
    inner_.abort(code, reason);
    std::abort();
  }

 private:
  std::unique_ptr<Communicator> part_;
  Communicator& inner_;
};

}  // namespace

std::unique_ptr<Communicator> through_gpu(Communicator& gpu) { return std::make_unique<ThroughGpu>(gpu); }

}  // namespace capstan::tests
