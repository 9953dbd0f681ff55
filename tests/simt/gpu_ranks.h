#pragma once
// Ranks as threads with emulated GPUs: all on one GPU, or over the emulated NCCL with one each.

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>

#include "kernels/device_queue.h"
#include "tests/support/ranks.h"
#include "tests/support/simt/runtime_api.h"
#include "tests/support/simt/simt.h"

namespace capstan::tests {

enum class GpuBackend : std::uint8_t { threads, nccl };

inline std::string name_of(GpuBackend backend) { return backend == GpuBackend::threads ? "threads" : "nccl"; }

/// As many GPUs as tests have ranks, for the length of a scope.
class EightGpus {
 public:
  EightGpus() { simt::set_devices(8, CUDART_VERSION); }
  ~EightGpus() { simt::set_devices(1, CUDART_VERSION); }
  EightGpus(const EightGpus&) = delete;
  EightGpus& operator=(const EightGpus&) = delete;
};

/// Rank threads that look like processes on one host: each has a GPU of its own, and NCCL between them.
class AsProcesses final : public parallel::Communicator {
 public:
  explicit AsProcesses(parallel::Communicator& threads) : threads_(threads) {}
  int rank() const override { return threads_.rank(); }
  int size() const override { return threads_.size(); }
  std::string backend() const override { return "mpi"; }
  std::unique_ptr<parallel::Pending> exchange(std::span<const parallel::Message> sends,
                                              std::span<const parallel::Message> receives) override {
    return threads_.exchange(sends, receives);
  }
  std::unique_ptr<Communicator> split(int color, int key) override { return threads_.split(color, key); }
  std::unique_ptr<Communicator> split_by_host() override { return threads_.split_by_host(); }
  [[noreturn]] void abort(ExitCode code, const std::string& reason) override { threads_.abort(code, reason); }

 private:
  parallel::Communicator& threads_;
};

/// The rank's part of a test: `host` is its communicator of threads.
inline void on_gpu(GpuBackend backend, parallel::Communicator& host,
                   const std::function<void(parallel::Communicator&)>& body) {
  const kernels::UseDevice gpu(backend == GpuBackend::threads ? 0 : host.rank());
  if (backend == GpuBackend::threads) return body(host);
  const std::unique_ptr<parallel::Communicator> nccl = parallel::make_nccl_communicator(host);
  body(*nccl);
}

inline void for_gpu_rank_counts(GpuBackend backend, std::initializer_list<int> counts,
                                const std::function<void(parallel::Communicator&)>& body) {
  const EightGpus gpus;
  for_rank_counts(counts, [&](parallel::Communicator& host) { on_gpu(backend, host, body); });
}

}  // namespace capstan::tests
