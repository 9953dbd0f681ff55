#pragma once
// What is known of every byte of device memory or of a block's shared memory: whether it was written, and by whom it was last
// touched. Kept per word of four bytes, and per byte for words that were touched in parts.

#include <cstddef>
#include <cstdint>

#include "tests/support/simt/clock.h"

namespace simt {

enum class Access : std::uint8_t { read, write, atomic };

/// What can be wrong with an access.
enum class Trouble : std::uint8_t {
  none,
  unwritten,    ///< reads what nobody has written
  after_write,  ///< not ordered after another thread's write
  after_read,   ///< writes, not ordered after another thread's read
  in_flight,    ///< an asynchronous copy to it was not waited for
};

class Shadow {
 public:
  /// Whose memory: everybody's (global), which lives on between launches, or a block's, which begins anew with every block.
  enum class Kind : std::uint8_t { global, shared };
  Shadow(Kind kind, std::size_t bytes);

  /// Thread `self` of the running block touches [offset, offset + size). The first trouble that there is.
  Trouble touch(const Clock& clock, int self, std::size_t offset, std::size_t size, Access access);
  /// Whose access the last trouble was about: a thread of the same block, or one of these.
  static constexpr int unknown = -1, another_block = -2;
  int other() const { return other_; }
  /// An asynchronous copy to these bytes begins: nobody may touch them until it lands. First touch() them as a write.
  void begin_copy(std::size_t offset, std::size_t size);
  void end_copy(std::size_t offset, std::size_t size);

  // Outside of launches, of global memory.
  void mark_written(std::size_t offset, std::size_t size);
  void mark_unwritten(std::size_t offset, std::size_t size);
  /// How many bytes from `offset` on are written, at most `size`.
  std::size_t written(std::size_t offset, std::size_t size) const;
  /// Forgets everything about whole pages of memory.
  void forget_pages(std::size_t offset, std::size_t size);

 private:
  struct Cell {
    Tick write = 0;             // when it was last written; 0: never
    Tick read = 0;              // when it was last read since then
    Tick other_block_read = 0;  // when a block before the last reader's read it
    std::uint32_t lanes = 0;    // who read it, in one warp
    std::uint16_t writer = 0;   // thread of its block, or several (atomics)
    std::uint8_t warp = 0;      // of the readers, or several
    bool atomic : 1 = false;    // the last write was atomic
    bool flying : 1 = false;    // an asynchronous copy is under way
    bool split : 1 = false;     // of words: look at the bytes instead
  };

  Trouble visit(Cell& cell, const Clock& clock, int self, Access access);
  int reader_of(const Cell& cell, const Clock& clock, int self) const;
  Trouble visit_word(Cell& word, std::size_t offset, const Clock& clock, int self, Access access);
  bool after_writes(const Cell& cell, const Clock& clock, int self, Access access) const;
  bool after_reads(const Cell& cell, const Clock& clock, int self) const;
  void note_read(Cell& cell, const Clock& clock, int self) const;
  void note_write(Cell& cell, const Clock& clock, int self, Access access) const;
  /// Earlier ticks do not count: they are ordered before all that this launch (this block) does.
  Tick horizon(const Clock& clock) const { return kind_ == Kind::global ? clock.launch() : clock.block(); }
  void split(std::size_t word);
  template <class F> void for_each_cell(std::size_t offset, std::size_t size, F&& f);

  Kind kind_;
  Cell* words_;
  Cell* bytes_;
  int other_ = unknown;
};

}  // namespace simt
