#pragma once
// A whole training step, to be measured: forward, backward and AdamW of a Llama with random weights on random tokens, on one rank.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "framework/model.h"
#include "framework/optimizer.h"

namespace capstan::tests {

/// As it stands, the shape of GPT-2 124M; its MLP as SwiGLU with the same number of weights.
struct StepShape {
  std::string encoding = "rope", precision = "f32";
  std::int64_t width = 768, mlp = 2048, heads = 12, kv_heads = 12, layers = 12, vocabulary = 50304;
  std::int64_t sequences = 1, tokens = 1024;
  int threads = 1;
  framework::Keep keep = framework::Keep::everything;
  kernels::Device device = kernels::Device::cpu;
  std::string text() const;  ///< ENCODING/PRECISION/layers:L/BxT/threads:N
};

/// A model with its optimizer.
class TrainingStep {
 public:
  explicit TrainingStep(const StepShape& shape);
  /// From now on sequences have so many tokens.
  void set_tokens(std::int64_t tokens);
  void run();
  std::int64_t parameters() const { return model_.parameters().elements(); }

 private:
  StepShape shape_;
  std::unique_ptr<parallel::Communicator> world_;
  framework::Model model_;
  std::optional<framework::Optimizer> optimizer_;
  std::optional<parallel::Ring> ring_;
  framework::Batch batch_;
};

/// Peak of the bytes that tensors hold in a step on the shape's device, less parameters and their states, and scratch memory of threads,
/// which does not grow with the tokens.
std::int64_t step_bytes(const StepShape& shape);

}  // namespace capstan::tests
