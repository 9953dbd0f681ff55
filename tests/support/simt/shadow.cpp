#include "tests/support/simt/shadow.h"

#include <bit>

#include "tests/support/simt/reserve.h"

namespace simt {

namespace {
constexpr std::size_t word_bytes = 4;
}

Shadow::Shadow(Kind kind, std::size_t bytes)
    : kind_(kind), words_(static_cast<Cell*>(reserve(bytes / word_bytes * sizeof(Cell)))),
      bytes_(static_cast<Cell*>(reserve(bytes * sizeof(Cell)))) {}

void Shadow::split(std::size_t word) {
  for (std::size_t i = 0; i < word_bytes; ++i) bytes_[word * word_bytes + i] = words_[word];
  words_[word].split = true;
}

Trouble Shadow::touch(const Clock& clock, int self, std::size_t offset, std::size_t size, Access access) {
  Trouble first = Trouble::none;
  for (const std::size_t end = offset + size; offset < end && first == Trouble::none;) {
    Cell& word = words_[offset / word_bytes];
    if (offset % word_bytes == 0 && end - offset >= word_bytes) {
      first = visit_word(word, offset, clock, self, access);
      offset += word_bytes;
    } else {
      if (!word.split) split(offset / word_bytes);
      first = visit(bytes_[offset++], clock, self, access);
    }
  }
  return first;
}

Trouble Shadow::visit_word(Cell& word, std::size_t offset, const Clock& clock, int self, Access access) {
  if (!word.split) return visit(word, clock, self, access);
  for (std::size_t i = 0; i < word_bytes; ++i) {
    const Trouble trouble = visit(bytes_[offset + i], clock, self, access);
    if (trouble != Trouble::none) return trouble;
  }
  if (access == Access::write) word = bytes_[offset];  // its four bytes have one story again
  return Trouble::none;
}

Trouble Shadow::visit(Cell& cell, const Clock& clock, int self, Access access) {
  const bool written = kind_ == Kind::global ? cell.write != 0 : cell.write >= clock.block();
  if (written && cell.flying) return Trouble::in_flight;
  if (!written && access != Access::write) return Trouble::unwritten;
  if (written && !after_writes(cell, clock, self, access)) {
    other_ = cell.write < clock.block() ? another_block : cell.writer == several_threads ? unknown : cell.writer;
    return Trouble::after_write;
  }
  if (access == Access::read) {
    note_read(cell, clock, self);
    return Trouble::none;
  }
  if (!after_reads(cell, clock, self)) {
    other_ = reader_of(cell, clock, self);
    return Trouble::after_read;
  }
  note_write(cell, clock, self, access);
  return Trouble::none;
}

bool Shadow::after_writes(const Cell& cell, const Clock& clock, int self, Access access) const {
  if (cell.write < horizon(clock) || (access == Access::atomic && cell.atomic)) return true;
  return cell.write >= clock.block() && clock.ordered(cell.write, cell.writer, self);
}

bool Shadow::after_reads(const Cell& cell, const Clock& clock, int self) const {
  const Tick horizon = this->horizon(clock);
  if (cell.other_block_read >= horizon) return false;
  if (cell.read < horizon) return true;
  if (cell.read < clock.block()) return false;
  if (cell.read < clock.barrier()) return true;
  return cell.warp == self / warp_width && clock.ordered_lanes(cell.read, cell.lanes, self);
}

int Shadow::reader_of(const Cell& cell, const Clock& clock, int self) const {
  if (cell.other_block_read >= horizon(clock) || cell.read < clock.block()) return another_block;
  if (cell.warp == several_warps) return unknown;
  const std::uint32_t self_lane = cell.warp == self / warp_width ? 1u << self % warp_width : 0;
  return cell.warp * warp_width + std::countr_zero(cell.lanes & ~self_lane);
}

void Shadow::note_read(Cell& cell, const Clock& clock, int self) const {
  const auto warp = static_cast<std::uint8_t>(self / warp_width);
  const std::uint32_t lane = 1u << self % warp_width;
  const bool in_block = cell.read >= clock.block();
  if (in_block && cell.warp == warp && cell.lanes == lane) {
    cell.read = clock.now();
    return;
  }
  // Readers that are ordered before this one need not be remembered: who is ordered after this one is so after them.
  const bool alone = !in_block || cell.read < clock.barrier() ||
                     (cell.warp == warp && clock.ordered_lanes(cell.read, cell.lanes, self));
  if (!in_block) cell.other_block_read = cell.read >= horizon(clock) ? cell.read : 0;
  if (alone) {
    cell.warp = warp;
    cell.lanes = lane;
  } else if (cell.warp == warp) {
    cell.lanes |= lane;
  } else {
    cell.warp = several_warps;
  }
  cell.read = clock.now();
}

void Shadow::note_write(Cell& cell, const Clock& clock, int self, Access access) const {
  // Atomics need no order among them, but who reads what they left must be ordered after all of them.
  const bool with_others = access == Access::atomic && cell.atomic && cell.write >= horizon(clock) &&
                           !(cell.write >= clock.block() && clock.ordered(cell.write, cell.writer, self));
  cell = Cell{};
  cell.write = clock.now();
  cell.writer = with_others ? several_threads : static_cast<std::uint16_t>(self);
  cell.atomic = access == Access::atomic;
}

template <class F> void Shadow::for_each_cell(std::size_t offset, std::size_t size, F&& f) {
  for (const std::size_t end = offset + size; offset < end;) {
    Cell& word = words_[offset / word_bytes];
    const bool whole = offset % word_bytes == 0 && end - offset >= word_bytes;
    if (whole && !word.split) {
      f(word);
      offset += word_bytes;
      continue;
    }
    if (!word.split) split(offset / word_bytes);
    f(bytes_[offset++]);
  }
}

void Shadow::begin_copy(std::size_t offset, std::size_t size) {
  for_each_cell(offset, size, [](Cell& cell) { cell.flying = true; });
}

void Shadow::end_copy(std::size_t offset, std::size_t size) {
  for_each_cell(offset, size, [](Cell& cell) { cell.flying = false; });
}

void Shadow::mark_written(std::size_t offset, std::size_t size) {
  for_each_cell(offset, size, [](Cell& cell) { cell = Cell{.write = 1}; });
}

void Shadow::mark_unwritten(std::size_t offset, std::size_t size) {
  for_each_cell(offset, size, [](Cell& cell) { cell = Cell{}; });
}

std::size_t Shadow::written(std::size_t offset, std::size_t size) const {
  for (std::size_t i = 0; i < size; ++i) {
    const Cell& word = words_[(offset + i) / word_bytes];
    if ((word.split ? bytes_[offset + i] : word).write == 0) return i;
  }
  return size;
}

void Shadow::forget_pages(std::size_t offset, std::size_t size) {
  // Whole pages of memory are whole pages of cells, too: a cell is a multiple of four bytes.
  forget(words_ + offset / word_bytes, size / word_bytes * sizeof(Cell));
  forget(bytes_ + offset, size * sizeof(Cell));
}

}  // namespace simt
