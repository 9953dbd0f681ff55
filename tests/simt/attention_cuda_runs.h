#pragma once
// The GPU's attention tile behind the test runs of tests/kernels/attention_runs.h: every call's arrays are copied to the emulated
// device, each exactly as large as it is, and back.

#include <cuda_runtime.h>

#include <cstring>
#include <list>
#include <map>
#include <utility>

#include "kernels/attention_tile.h"
#include "tests/kernels/attention_runs.h"
#include "tests/simt/device_array.h"

namespace capstan::tests {

/// Arrays of one call. Views of the same elements become one array, as gradients may share theirs.
class OnDevice {
 public:
  kernels::View operator()(const kernels::View& host) {
    if (!host) return {};
    const auto [place, made] = at_.try_emplace({host.data(), host.bytes()}, nullptr);
    if (made) place->second = &arrays_.emplace_back(host);
    return kernels::View(place->second->bytes.data(), host.type(), kernels::Device::cuda, host.shape());
  }
  std::array<kernels::View, kernels::gated_sums> operator()(
      const std::array<kernels::View, kernels::gated_sums>& host) {
    return {(*this)(host[0]), (*this)(host[1])};
  }
  kernels::QueryChunk operator()(const kernels::QueryChunk& x) {
    return {(*this)(x.q), (*this)(x.index), (*this)(x.position), (*this)(x.document), x.terms.map(std::ref(*this))};
  }
  kernels::KeyChunk operator()(const kernels::KeyChunk& x) {
    return {(*this)(x.k),
            (*this)(x.v),
            (*this)(x.z),
            (*this)(x.index),
            (*this)(x.position),
            (*this)(x.document),
            x.terms.map(std::ref(*this))};
  }
  kernels::SharedTerms operator()(const kernels::SharedTerms& x) {
    return {(*this)(x.slope),
            (*this)(x.distance_table),
            {(*this)(x.fire.in), (*this)(x.fire.in_bias), (*this)(x.fire.out), (*this)(x.fire.out_bias),
             (*this)(x.fire.scale)}};
  }
  kernels::AttentionSettings operator()(const kernels::AttentionSettings& x) {
    kernels::AttentionSettings settings = x;
    settings.shared = (*this)(x.shared);
    return settings;
  }
  /// What the device has now, where the host's arrays lie.
  void download() const {
    for (const Array& array : arrays_) {
      const std::vector<std::byte> content = array.bytes.values();
      std::memcpy(array.host.data(), content.data(), content.size());
    }
  }

 private:
  struct Array {
    kernels::View host;
    DeviceArray<std::byte> bytes;
    explicit Array(const kernels::View& view) : host(view), bytes(static_cast<std::size_t>(view.bytes())) {
      std::vector<std::byte> content(bytes.size());
      std::memcpy(content.data(), view.data(), content.size());
      bytes.upload(content);
    }
  };
  std::list<Array> arrays_;
  std::map<std::pair<void*, std::int64_t>, Array*> at_;
};

inline const TileKernels on_gpu{
    [](const kernels::AttentionState& state, const kernels::QueryChunk& queries, const kernels::KeyChunk& keys,
       const kernels::AttentionSettings& settings, kernels::AttentionStats* stats) {
      OnDevice device;
      const kernels::AttentionState there{device(state.o), device(state.m), device(state.l), device(state.carry),
                                          device(state.horizon)};
      kernels::attention_forward(there, device(queries), device(keys), device(settings), stats);
      device.download();
    },
    [](const kernels::AttentionGradients& out, const kernels::AttentionBackwardState& state,
       const kernels::QueryChunk& queries, const kernels::KeyChunk& keys, const kernels::View& d_o,
       const kernels::AttentionSaved& saved, const kernels::AttentionSettings& settings) {
      OnDevice device;
      kernels::AttentionGradients there;
      there.dq = device(out.dq);
      there.dk = device(out.dk);
      there.dv = device(out.dv);
      there.dz = device(out.dz);
      there.rows = out.rows.map(std::ref(device));
      there.keys = out.keys.map(std::ref(device));
      there.shared = device(out.shared);
      kernels::attention_backward(
          there, {device(state.carry), device(state.gate_grad)}, device(queries), device(keys), device(d_o),
          {device(saved.lse), device(saved.delta), device(saved.carry), device(saved.horizon)}, device(settings));
      device.download();
    }};

inline TileRun run_on_gpu(const AttentionProblem& problem, kernels::DType type,
                          const kernels::AttentionSettings& settings, const TileCuts& cuts = {}) {
  return run_tiles(problem, type, kernels::Device::cpu, settings, cuts, on_gpu);
}

}  // namespace capstan::tests
