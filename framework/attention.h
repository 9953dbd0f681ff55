#pragma once
// One layer's attention: norm (with model.norm = pre), projections, encoding hooks, ring, output projection. Backward under forward.

#include <functional>
#include <optional>

#include "framework/dropout.h"
#include "framework/encoding.h"
#include "framework/linear.h"
#include "framework/norm.h"
#include "framework/parameters.h"
#include "framework/shifted_attention.h"
#include "kernels/converted.h"
#include "parallel/ring_attention.h"

namespace capstan::framework {

/// Who runs the attention of a layer: the ring (training, evaluation), the ring with a cache behind it (prefill), or the
/// sharded cache (decode). Takes the layer and the local shard, gives O, LSE and what backward needs.
using Attend = std::function<parallel::RingSaved(int layer, const parallel::RingInputs&,
                                                 const kernels::AttentionSettings&, kernels::AttentionStats*)>;

/// What one micro-batch shares over all layers.
struct SequenceContext {
  std::int64_t batch = 1, tokens = 0;  ///< B, T (local)
  TokenRows rows;                      ///< [B, T]
  Attend attend;
  const parallel::Ring* ring = nullptr;  ///< backward only
  std::int64_t tile = 64;
  Dropout dropout = {};
  const ShiftedSegments* shifted =
      nullptr;  ///< of shifted sparse attention, which `attend` then plays; else full attention
};

/// Token-local values before the ring. N = B·T. The norm's result is not among them: it costs less to make than to keep.
struct AttentionLocal {
  Tensor q, k, v;       // [N, H, D], [N, G, D], [N, G, D]; q, k empty where only the rotated ones are read
  Tensor q_rot, k_rot;  // as q, k after the encoding's rotation; empty if it has none
  Tensor gate_k_rot;    // separate gate keys after the rotation, where gates see rotated keys
  Prepared prepared;
};

class Attention {
 public:
  /// Names under `prefix` ("model.layers.3").
  Attention(const ModelConfig& config, const std::string& prefix, int layer, Encoding& encoding,
            Parameters& parameters);

  /// Everything before the ring, from x [N, C] and the state z [N, G, D] (or absent).
  AttentionLocal local(const View& x, const View& z) const;
  /// The ring. stats may be null.
  parallel::RingSaved attend(const SequenceContext& context, const AttentionLocal& local, const View& z,
                             kernels::AttentionStats* stats) const;
  /// out [N, C] += W_o y (+ b_o), y = first D columns of each head of O.
  void project(const View& out, const parallel::RingSaved& ring) const;
  /// p [N, H, D]: the state's average, the last D columns of O. Only where the state travels.
  Tensor state_average(const parallel::RingSaved& ring) const;

  /// dx [N, C] += , dz [N, G, D] += (absent without state), from d_out [N, C] (gradient after project; may be dx) and dp (absent or [N, H, D]).
  void backward(const SequenceContext& context, const View& dx, const View& dz, const View& d_out, const View& dp,
                const View& x, const View& z, const AttentionLocal& local, const parallel::RingSaved& ring) const;

 private:
  parallel::RingInputs inputs(const SequenceContext& context, const AttentionLocal& local, const View& z) const;
  kernels::AttentionSettings settings(const SequenceContext& context) const;
  View projected(const View& x, Tensor& made) const;
  void terms_backward(const Projections& d, const parallel::RingTerms& from, const AttentionLocal& local,
                      const View& xn, const View& dz, const View& z) const;
  View value_average(const View& o, Tensor& copy) const;
  bool rotates() const { return encoding_.claims().rotation; }
  /// Score terms whose arrays are made from the projections.
  bool prepares() const {
    const Claims claims = encoding_.claims();
    return claims.gates || claims.offset || claims.relative;
  }

  int layer_;
  std::int64_t heads_, kv_heads_, head_size_;
  Encoding& encoding_;
  std::optional<Norm> norm_;  // pre
  Linear q_, k_, v_, o_;
};

}  // namespace capstan::framework
