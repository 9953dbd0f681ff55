#pragma once
// A position encoding is what it does at five hooks; each defaults to nothing. Encodings compose with `+` (rope+cope): any number
// of order-free parts, at most one that rotates q and k, one with a score term, one with a state.
//
//   1 embed        after the token embedding                                      absolute encodings
//   2 rotate       q, k → q, k                                                    RoPE, TAPE
//   3 prepare      after the projections, before the ring: row arrays that stay with the queries     CoPE's table logits
//   4 term         which score term the tile adds (kernels/terms/)                CoPE
//   5 update       end of a layer: position state → next state                    TAPE
//
// Every hook stands above its backward. All views are the rank's local tokens of all sequences: N = B·T rows.

#include <memory>
#include <string>

#include "framework/config.h"
#include "framework/parameters.h"
#include "kernels/attention_tile.h"
#include "parallel/ring_attention.h"

namespace capstan::framework {

using parallel::TokenRows;

/// What an encoding must know of the model.
struct EncodingShape {
  std::int64_t layers, width, heads, kv_heads, head_size;  ///< L, C, H, G, D
  std::int64_t original_length;                            ///< trained length before scaling
};

class Encoding {
 public:
  virtual ~Encoding() = default;

  /// Declares the parameters: model.layers.N.position.*
  virtual void declare(Parameters&) {}
  /// Once per micro-batch: phases from the positions. total_length: of the whole sequence, or as declared.
  virtual void begin(const TokenRows&, std::int64_t /*total_length*/, Device, DType) {}

  // 1. x [N, C], adds to.
  virtual void embed(const View& /*x*/) {}
  virtual void embed_backward(const View& /*dx*/) {}

  // 2. q_out [N, H, D], k_out [N, G, D] overwrite.
  virtual bool rotates() const { return false; }
  virtual void rotate(int /*layer*/, const View& /*q_out*/, const View& /*k_out*/, const View& /*q*/, const View& /*k*/,
                      const View& /*z*/) {}
  /// dq, dk: gradients of q_out, k_out become gradients of q, k in place; dz adds to (absent without state).
  virtual void rotate_backward(int, const View& /*dq*/, const View& /*dk*/, const View& /*dz*/, const View& /*q*/,
                               const View& /*k*/, const View& /*z*/) {}

  // 3. Row table [N, H, P + 1] from the unrotated q, or nothing.
  virtual Tensor prepare(int /*layer*/, const View& /*q*/) { return {}; }
  /// dq (of the unrotated q) adds to.
  virtual void prepare_backward(int, const View& /*dq*/, const View& /*dtable*/, const View& /*q*/) {}

  // 4.
  virtual kernels::TermKind term() const { return kernels::TermKind::none; }

  // 5. The state that enters layer `layer` travels as further value columns if travels(layer).
  virtual bool has_state() const { return false; }
  virtual bool travels(int /*layer*/) const { return false; }
  virtual Tensor first_state() { return {}; }  ///< z [N, G, D] of layer 0
  /// The same from positions [n] alone, z [n, G, D] overwrites: layer 0's states are made where they are needed.
  virtual void make_first_state(const View& /*z*/, const View& /*position*/) {}
  /// z_next [N, G, D] from z, p [N, H, D] (attention over states, per query head) and m [N, C] (the MLP's output).
  virtual Tensor update(int /*layer*/, const View& /*z*/, const View& /*p*/, const View& /*m*/) { return {}; }
  /// dz [N, G, D] and dm [N, C] add to, dp [N, H, D] overwrites.
  virtual void update_backward(int, const View& /*dz*/, const View& /*dp*/, const View& /*dm*/, const View& /*dz_next*/,
                               const View& /*z*/, const View& /*p*/, const View& /*m*/) {}
};

/// By position.kind; parts joined by `+`. Errors (config): unknown name, two parts of one kind.
std::unique_ptr<Encoding> make_encoding(const PositionConfig& position, const EncodingShape& shape);
/// Names that may be joined, and the kinds that recipes use.
std::vector<std::string> encoding_names();

// One factory per file of encodings/.
std::unique_ptr<Encoding> make_none(const PositionConfig&, const EncodingShape&);
std::unique_ptr<Encoding> make_rope(const PositionConfig&, const EncodingShape&);
std::unique_ptr<Encoding> make_cope(const PositionConfig&, const EncodingShape&);
std::unique_ptr<Encoding> make_tape(const PositionConfig&, const EncodingShape&);

}  // namespace capstan::framework
