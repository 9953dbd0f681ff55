#pragma once
// CoPE's part that hierarchical CoPE shares: gate keys, table logits, and which layers have it.

#include "framework/encoding.h"
#include "framework/encodings/row_table.h"

namespace capstan::framework {

class Cope : public Encoding {
 public:
  Cope(const PositionConfig& position, const EncodingShape& shape);

  Claims claims() const override { return {.gates = true}; }
  void declare(Parameters& parameters) override;
  Prepared prepare(int layer, const Projections& in) override;
  void prepare_backward(int layer, const Projections& d, const PreparedGradients& d_prepared,
                        const Projections& in) override;
  Terms terms(int layer) const override;
  Arithmetic arithmetic(int layer) const override;

 protected:
  /// cope_every: layers k - 1, 2k - 1, …
  bool is_on(int layer) const { return (layer + 1) % position_.cope_every == 0; }
  double factor() const;

  PositionConfig position_;
  EncodingShape shape_;

 private:
  RowTable table_;
  std::vector<Parameter*> gate_keys_;  // per layer [G D, C], null where it has no CoPE; cope_gate = separate
};

}  // namespace capstan::framework
