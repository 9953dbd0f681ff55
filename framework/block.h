#pragma once
// One pre-norm Llama block: x + attention(norm x), then + mlp(norm ·); TAPE's position state z beside it.

#include <optional>

#include "framework/attention.h"

namespace capstan::framework {

/// What forward keeps for backward.
///   nothing     evaluation
///   everything  recompute = none: all but norms and products of two numbers
///   ring        recompute = block: block inputs and the ring's results; backward re-runs token-local parts only
///   inputs      recompute = block_full: block inputs; backward re-runs the ring too
enum class Keep : std::uint8_t { nothing, everything, ring, inputs };

/// Token-local values of the MLP. N = B·T. Its norm and h = silu(gate) · up cost less to make again than to keep.
struct MlpLocal {
  Tensor gate, up;  // [N, F]
  Tensor m;         // [N, C] output before its residual; where TAPE's update reads it
};

struct BlockSaved {
  Tensor x, z;                              // the block's inputs: [N, C]; [N, G, D] or empty
  std::optional<parallel::RingSaved> ring;  // unless Keep::inputs
  std::optional<AttentionLocal> attention;  // Keep::everything
  std::optional<MlpLocal> mlp;              // Keep::everything
  Tensor x_mid;                             // [N, C] between attention and MLP; Keep::everything
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
  Tensor normed(const View& x_mid) const;
  MlpLocal gates(const View& x_mid) const;
  Tensor mlp_output(const MlpLocal& local) const;
  void mlp_backward(const View& dx, const View& dm, const View& x_mid, const MlpLocal* kept) const;
  void mlp_rows_backward(const View& dx, const View& dm, const View& x_mid, const View& gate, const View& up) const;
  Tensor after_attention(const SequenceContext& context, const View& x, const parallel::RingSaved& ring) const;

  int layer_;
  double norm_eps_;
  Encoding& encoding_;
  Attention attention_;
  Parameter& norm_;
  Linear gate_, up_, down_;
};

}  // namespace capstan::framework
