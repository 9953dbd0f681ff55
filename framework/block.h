#pragma once
// One block, TAPE's position state z beside it. With A = attention, M = MLP, norms RMSNorm, drop = dropout:
//
//   model.norm = pre    s = x + drop(A(norm₁ x));  m = M(norm₂ s);  out = s + drop(m)                      (Llama)
//   model.norm = post   s = x + drop(A(x));  y = norm₂ s;  m = M(y);  out = norm₃(y + drop(m))             (arXiv 1706.03762, §3.1)
//
//   model.mlp = swiglu  M(x) = W_down (silu(W_gate x) · W_up x);  geglu: with gelu                          (arXiv 2002.05202)
//   model.mlp = gelu    M(x) = W_down gelu(W_up x)
//
// norm₁ is named input_layernorm, norm₂ post_attention_layernorm, norm₃ post_feedforward_layernorm. TAPE's update reads m: the MLP's
// output before dropout, residual and norm, under either placement.

#include <optional>

#include "framework/attention.h"
#include "kernels/activation.h"

namespace capstan::framework {

/// What forward keeps for backward.
///   nothing     evaluation
///   everything  recompute = none: all but norms and activations
///   ring        recompute = block: block inputs and the ring's results; backward re-runs token-local parts only
///   inputs      recompute = block_full: block inputs; backward re-runs the ring too
enum class Keep : std::uint8_t { nothing, everything, ring, inputs };

/// Token-local values of the MLP. N = B·T. Its norm and h, what W_down reads, cost less to make again than to keep.
struct MlpLocal {
  Tensor gate, up;  // [N, F]; without a gate only up
  Tensor m;         // [N, C] output before its residual; where backward reads it: TAPE's update, the norm after the sum
};

struct BlockSaved {
  Tensor x, z;                              // the block's inputs: [N, C]; [N, G, D] or empty
  std::optional<parallel::RingSaved> ring;  // unless Keep::inputs
  std::optional<AttentionLocal> attention;  // Keep::everything
  std::optional<MlpLocal> mlp;              // Keep::everything
  Tensor s;                                 // [N, C] x and what attention adds; Keep::everything
};

struct BlockOutput {
  Tensor x, z;
};

/// One line of metrics.jsonl per layer.
struct LayerStats {
  kernels::AttentionStats attention;
  double horizon_sum = 0;  ///< Σ over query tiles and heads of (tile's last index - horizon)
  std::int64_t horizons = 0;
  double z_sum = 0, z_max = 0;  ///< |z| of the state that the layer hands on
  std::int64_t z_count = 0;
};

class Block {
 public:
  Block(const ModelConfig& config, int layer, Encoding& encoding, Parameters& parameters);

  /// x, z are taken over (into `saved` if kept). stats may be null.
  BlockOutput forward(const SequenceContext& context, Tensor x, Tensor z, Keep keep, BlockSaved& saved,
                      LayerStats* stats) const;
  /// dx [N, C], dz [N, G, D] (or empty): gradients of the outputs come in, of the inputs go out.
  void backward(const SequenceContext& context, Tensor& dx, Tensor& dz, BlockSaved& saved) const;

 private:
  Tensor after_attention(const SequenceContext& context, const View& x, const parallel::RingSaved& ring) const;
  MlpLocal mlp_local(const View& s) const;
  void activate(const View& h, const View& gate, const View& up) const;
  void activate_backward(const View& dgate, const View& dup, const View& dh, const View& gate, const View& up) const;
  Tensor mlp_output(const MlpLocal& local) const;
  Tensor after_mlp(const SequenceContext& context, const Tensor& s, const Tensor& m) const;
  void mlp_backward(const View& dx, const View& dm, const View& s, const MlpLocal* kept) const;
  void mlp_rows_backward(const View& dx, const View& dm, const View& s, const View& gate, const View& up) const;
  bool reads_output() const { return last_norm_ || encoding_.travels(layer_); }

  int layer_;
  kernels::Activation activation_;
  Encoding& encoding_;
  Attention attention_;
  Norm norm_;
  std::optional<Linear> gate_;
  Linear up_, down_;
  std::optional<Norm> last_norm_;  // post
};

}  // namespace capstan::framework
