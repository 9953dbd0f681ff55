#pragma once
// Logits of every row against a learned table: z_i[n] = factor q_i · e[n], the small product that CoPE (arXiv 2405.18719,
// eq. 5) and relative encodings share. One table [rows, D] per layer or for all layers, shared by the heads, zero at first.

#include <string>
#include <vector>

#include "framework/encoding.h"

namespace capstan::framework {

class RowTable {
 public:
  RowTable(std::string name, std::int64_t rows, double factor, bool shared)
      : name_(std::move(name)), rows_(rows), factor_(factor), shared_(shared) {}

  /// Tables of layers every - 1, 2 every - 1, …; or the shared one.
  void declare(Parameters& parameters, const EncodingShape& shape, std::int64_t every = 1);
  /// [N, H, rows] from q [N, H, D].
  Tensor logits(int layer, const View& q) const;
  /// dq adds to; the table's gradient adds to.
  void logits_backward(int layer, const View& dq, const View& d_logits, const View& q) const;

 private:
  Parameter& of(int layer) const { return *tables_[shared_ ? 0 : std::size_t(layer)]; }

  std::string name_;
  std::int64_t rows_;
  double factor_;
  bool shared_;
  std::vector<Parameter*> tables_;  // [rows, D] each; null where a layer has none
};

}  // namespace capstan::framework
