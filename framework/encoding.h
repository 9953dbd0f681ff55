#pragma once
// A position encoding is what it does at five hooks; each defaults to nothing. Encodings compose with `+` (rope+cope,
// cope+relative): every part adds what it has, and no two parts may have the same of what there can be only one (Claims).
//
//   1 embed        after the token embedding                                      sinusoidal, learned
//   2 rotate       q, k → q, k                                                    RoPE, xPos, TAPE
//   3 prepare      after the projections, before the ring: arrays that stay with the rows or travel with the keys
//   4 terms        which score terms the tile adds (kernels/score_terms.h)        CoPE, ALiBi, T5, FIRE, Shaw, FoX, …
//   5 update       end of a layer: position state → next state                    TAPE
//
// Positions and what is made of them are wide (f32 in a bf16 model), and so is all that an encoding sees, except that
// `rotate` takes and gives values in the model's type.
//
// Before all of them `place` may move the positions themselves (RandPE). Every hook stands above its backward. All views
// are the rank's local tokens of all sequences: N = B·T rows. Ranks, chunks and messages are no concern of an encoding: what
// prepare gives per token, parallel/ring_attention brings to where it is needed.

#include <memory>
#include <string>

#include "framework/config.h"
#include "framework/parameters.h"
#include "kernels/attention_tile.h"
#include "parallel/offsets.h"
#include "parallel/token_rows.h"

namespace capstan::framework {

using parallel::TokenRows;

/// What an encoding must know of the model.
struct EncodingShape {
  std::int64_t layers, width, heads, kv_heads, head_size;  ///< L, C, H, G, D
  std::int64_t original_length;                            ///< trained length before scaling
  std::int64_t max_length;                                 ///< longest length to be trained at
};

/// What of a layer there can be only one.
struct Claims {
  bool rotation = false, state = false, gates = false, offset = false, relative = false, distance = false,
       function = false, positions = false;
};

/// Where gated sum 0 takes its gate keys from.
enum class GateKeys : std::uint8_t { keys, separate, values };

/// The score terms of one layer.
struct Terms {
  std::array<kernels::GateRule, kernels::gated_sums> gates = {};
  GateKeys gate_keys = GateKeys::keys;
  bool rotated_gates = true;  ///< gates see q and keys as rotated as the logits do, where there is a rotation
  kernels::SharedTerms shared = {};
  parallel::OffsetSettings offset = {};
};

/// Token-local inputs of prepare.
struct Projections {
  View xn;       ///< [N, C] after the norm
  View q, k, v;  ///< [N, H, D], [N, G, D], [N, G, D] before any rotation
};

/// What prepare makes. Empty tensors: not there.
struct Prepared {
  std::array<Tensor, kernels::gated_sums> table;  // [N, H, P + 1]
  std::array<Tensor, kernels::gated_sums>
      gate_k;            // [N, G, D] separate keys of sum 0; keys of sum 1, pooled over blocks later
  Tensor offset_source;  // [N, H]
  Tensor offset_table;   // [N, H, P + 1]
  Tensor relative;       // [N, H, R + 1]
  /// f(tensor) on every tensor.
  template <class F> void each(F&& f) {
    for (Tensor* t : {&table[0], &table[1], &gate_k[0], &gate_k[1], &offset_source, &offset_table, &relative}) f(*t);
  }
};

/// Gradients of Prepared, absent where it is empty.
struct PreparedGradients {
  std::array<View, kernels::gated_sums> table, gate_k;
  View offset_source, offset_table, relative;
};

/// Products of matrices that an encoding adds to a layer's forward, beyond q·k and weights times values: two FLOP for each
/// multiply-add.
struct Arithmetic {
  double per_token = 0;
  double per_pair = 0;  ///< of a query and a key, all heads together
};

enum class Side : std::uint8_t { queries, keys };

class Encoding {
 public:
  virtual ~Encoding() = default;

  virtual Claims claims() const { return {}; }
  /// Declares the parameters: model.layers.N.position.*, those of all layers model.position.*
  virtual void declare(Parameters&) {}
  /// 0. position [B, T] in place: from the place in a document to the position that all hooks see. draws [B]: what makes
  /// sequences differ. length: of the whole sequence.
  virtual void place(const View& /*position*/, const std::vector<std::uint64_t>& /*draws*/, std::int64_t /*length*/) {}
  /// Once per micro-batch: phases from the positions. total_length: of the whole sequence, or as declared.
  virtual void begin(const TokenRows&, std::int64_t /*total_length*/, Device, DType) {}

  // 1. x [N, C], adds to.
  virtual void embed(const View& /*x*/) {}
  virtual void embed_backward(const View& /*dx*/) {}

  // 2. out [N, heads, D] overwrites, from x; heads: H for queries, G for keys.
  virtual void rotate(int /*layer*/, Side, const View& /*out*/, const View& /*x*/, const View& /*z*/) {}
  /// dx: gradient of out becomes gradient of x in place; dz adds to. Without state z and dz are absent, and x may be.
  virtual void rotate_backward(int, Side, const View& /*dx*/, const View& /*dz*/, const View& /*x*/,
                               const View& /*z*/) {}

  // 3.
  virtual Prepared prepare(int /*layer*/, const Projections&) { return {}; }
  /// d: gradients of Projections, add to.
  virtual void prepare_backward(int, const Projections& /*d*/, const PreparedGradients&, const Projections&) {}

  // 4. With the parameters' values; and their gradients, to add to.
  virtual Terms terms(int /*layer*/) const { return {}; }
  virtual kernels::SharedTerms shared_gradients(int /*layer*/) const { return {}; }
  /// Tokens per block; chunk edges lie at its multiples.
  virtual std::int64_t block() const { return 1; }
  virtual Arithmetic arithmetic(int /*layer*/) const { return {}; }

  // 5. The state that enters layer `layer` travels as further value columns if travels(layer).
  virtual bool travels(int /*layer*/) const { return false; }
  virtual Tensor first_state() { return {}; }  ///< z [N, G, D] of layer 0
  /// The same from positions [n] alone, z [n, G', D] overwrites: layer 0's states are made where they are needed.
  virtual void make_first_state(const View& /*z*/, const View& /*position*/) {}
  /// z_next [N, G, D] from z, p [N, H, D] (attention over states, per query head) and m [N, C] (the MLP's output).
  virtual Tensor update(int /*layer*/, const View& /*z*/, const View& /*p*/, const View& /*m*/) { return {}; }
  /// dz [N, G, D] and dm [N, C] add to, dp [N, H, D] overwrites.
  virtual void update_backward(int, const View& /*dz*/, const View& /*dp*/, const View& /*dm*/, const View& /*dz_next*/,
                               const View& /*z*/, const View& /*p*/, const View& /*m*/) {}
};

/// By position.kind; parts joined by `+`. Errors (config): unknown name, two parts that claim the same, a part without use.
std::unique_ptr<Encoding> make_encoding(const PositionConfig& position, const EncodingShape& shape);
/// Names that may be joined.
std::vector<std::string> encoding_names();
/// What is tested and documented, one line each.
struct EncodingKind {
  std::string kind, what, source;
  std::string option = {}, value = {};  ///< of [position], where a value of it makes another row of the table
};
std::vector<EncodingKind> encoding_kinds();
/// What the parts of a kind claim together, without a model. Errors (config): as make_encoding.
Claims claims_of(const PositionConfig& position);
/// Why this encoding cannot run under this schedule, in one sentence with what to do; empty if it can.
std::string refuse_pair(const PositionConfig& position, const std::string& schedule);

// One factory per file of encodings/.
using MakeEncoding = std::unique_ptr<Encoding>(const PositionConfig&, const EncodingShape&);
MakeEncoding make_none, make_sinusoidal, make_learned, make_rope, make_xpos, make_randomized, make_relative, make_alibi,
    make_t5, make_fire, make_cope, make_hierarchical_cope, make_forget, make_tape;

}  // namespace capstan::framework
