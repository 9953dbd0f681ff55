#pragma once
// Named parameters in a fixed order. Names are Hugging Face's for Llama; an encoding's own are model.layers.N.position.*.
//
// Declared first, then allocated: all trainable values lie in one buffer and their gradients in another of the same layout, so
// that the optimizer may cut both evenly over the ranks (ZeRO-1) whatever the tensors are. Frozen values lie apart and have no
// gradient.
//
// A model in bf16 is loaded in f32 and then narrowed: values become bf16, but those of position encodings, which stay f32
// (tables, gates' keys and states are computed in it). Gradients are f32 throughout.

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace capstan::framework {

using kernels::Device;
using kernels::DType;
using kernels::Shape;
using kernels::Tensor;
using kernels::View;

enum class Init : std::uint8_t { zero, one, normal, given };

struct Parameter {
  std::string name;
  Shape shape;
  Init init = Init::zero;
  std::vector<double> given;  ///< the first values, for Init::given
  bool trainable = true;
  bool decay = false;             ///< weight decay: matrices only
  std::int64_t offset = -1;       ///< first element in the trainable buffer
  std::int64_t wide_offset = -1;  ///< first element in the buffer of values that stay f32; below 0: not there
  View value;                     ///< of `shape`
  View grad;                      ///< of `shape`; absent if frozen
};

class Parameters {
 public:
  /// References stay valid. Matrices (rank 2) get weight decay.
  Parameter& declare(const std::string& name, Shape shape, Init init);
  /// Decides what is trainable and allocates. Gradients exist only if `with_gradients`. The trainable buffers are padded with
  /// zeros so that `ranks` even shards (shard_range) cover them.
  void allocate(Device device, DType type, bool with_gradients,
                const std::function<bool(const std::string&)>& trainable, int ranks = 1);
  /// From now on values are bf16, rounded from the f32 that they are.
  void narrow();
  /// f32 again, with the rounded values, for new ones to be loaded. Nothing to do unless narrow.
  void widen();
  bool is_narrow() const { return values_.view().type() == DType::bf16; }
  /// Fills every value from its rule: a pure function of (seed, name, element).
  void initialise(std::uint64_t seed, double std_deviation);

  std::deque<Parameter>& all() { return all_; }
  const std::deque<Parameter>& all() const { return all_; }
  Parameter* find(const std::string& name);
  std::int64_t trainable_elements() const { return trainable_elements_; }
  std::int64_t elements() const;
  /// [trainable elements + padding], one after the other in the order of declaration.
  const View& trainable_values() const { return values_.view(); }
  const View& gradients() const { return gradients_.view(); }
  /// Of a narrow model: the trainable values that stay f32, one after the other. Their places in trainable_values() are unused.
  View wide_trainable_values() const { return wide_.view().rows(0, wide_trainable_elements_); }

 private:
  void place_values();

  std::deque<Parameter> all_;
  std::int64_t trainable_elements_ = 0, wide_trainable_elements_ = 0;
  Tensor values_, frozen_, gradients_;
  Tensor wide_;  // narrow models: values of position encodings, the trainable ones first
};

/// Parameters of position encodings: they stay f32 in a narrow model, and a checkpoint may lack them.
bool is_of_position(const std::string& name);
/// Parameters of adapters (framework/linear.h): a checkpoint may lack them, too.
bool is_of_adapter(const std::string& name);

/// True if `name` matches one of the comma-separated patterns; `*` stands for any text, `?` for one character.
bool matches_any(const std::string& name, const std::string& patterns);

/// Elements of the trainable buffer that rank `rank` of `ranks` updates: [begin, end), even pieces, the last ones may be short or empty.
struct ShardRange {
  std::int64_t begin, end;
};
ShardRange shard_range(std::int64_t elements, int rank, int ranks);

}  // namespace capstan::framework
