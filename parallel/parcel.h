#pragma once
// One chunk's share of a set of arrays, for one head group: what schedules move. A parcel is one message; where nothing
// moves and heads are not split, it is a window into the local arrays and costs nothing.

#include <vector>

#include "kernels/tensor.h"
#include "parallel/sequence_layout.h"

namespace capstan::parallel {

using kernels::Tensor;
using kernels::View;

/// What the rows of an array are.
enum class Per : std::uint8_t { token, tile, block };

/// One local array [B, rows, …], rows of all the rank's chunks in local order. With heads: [B, rows, heads, …], and a
/// head group takes its share of them. Absent arrays keep their place in the list.
struct Field {
  View whole;
  Per per = Per::token;
  bool heads = true;
};
using Fields = std::vector<Field>;

/// How many tokens make a tile and a block.
struct Steps {
  std::int64_t tile = 1, block = 1;
  std::int64_t of(Per per) const { return per == Per::token ? 1 : per == Per::tile ? tile : block; }
};

/// Which part of the arrays: a chunk and head group `group` of `groups`.
struct Part {
  int chunk = 0, group = 0, groups = 1;
};

class Parcel {
 public:
  Parcel() = default;
  /// Memory for the part, zero.
  static Parcel packed(const Fields& like, const SequenceLayout& layout, const Steps& steps, const Part& part);
  /// The part inside the local arrays of its owner.
  static Parcel window(const Fields& fields, const SequenceLayout& layout, const Steps& steps, const Part& part);
  /// Whether a window would do for this part.
  static bool may_be_window(const Part& part) { return part.groups == 1; }

  /// Copies the part out of, or into, the local arrays of its owner. Not for windows.
  void copy_from(const Fields& fields, const SequenceLayout& layout, const Steps& steps, const Part& part) const;
  void copy_to(const Fields& fields, const SequenceLayout& layout, const Steps& steps, const Part& part) const;

  /// Field number `field` of sequence b: [rows, …] or absent.
  View at(int field, std::int64_t b) const;
  /// The same, rows [begin, end).
  View at(int field, std::int64_t b, std::int64_t begin, std::int64_t end) const;
  /// Field of all sequences [B, rows, …]; packed parcels only.
  const View& all(int field) const { return arrays_[std::size_t(field)]; }
  bool is_packed() const { return bool(memory_); }
  /// The message; packed parcels only.
  const View& message() const { return memory_.view(); }

  /// Bytes of such a message.
  static std::int64_t bytes(const Fields& like, const SequenceLayout& layout, const Steps& steps, const Part& part);

 private:
  Tensor memory_;                    // u8
  std::vector<View> arrays_;         // packed: [B, rows, …]; window: the whole arrays
  std::vector<std::int64_t> first_;  // window: first row of each array
  std::vector<std::int64_t> rows_;
};

}  // namespace capstan::parallel
