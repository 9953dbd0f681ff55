// What must move so that the work of a schedule can be done. Slots are counted as the work counts them; what must happen
// before slot 0 shifts the whole table.

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "kernels/check.h"
#include "parallel/ring_schedule.h"

namespace capstan::parallel {

namespace {

using Parcel = std::pair<int, int>;  // chunk, head group

/// `from` sends the keys in this slot, `to` has them from the next one on.
struct KeyMove {
  Parcel parcel;
  int from, to, slot;
};

/// Ranks [begin, end) of `members` want the parcel in hand in slot `use`. The second half gets it in slot use - 1 from
/// the first half and from `root`, which has it; the first half one slot earlier, in the same way. So M ranks that want
/// a parcel at one time get it in log2 M slots, and nobody sends it twice in a slot.
void deliver(const Parcel& parcel, const std::vector<int>& members, std::size_t begin, std::size_t end, int use,
             int root, std::vector<KeyMove>& moves) {
  if (begin == end) return;
  const std::size_t half = begin + (end - begin) / 2;
  deliver(parcel, members, begin, half, use - 1, root, moves);
  for (std::size_t i = half; i < end; ++i)
    moves.push_back({parcel, i + 1 == end ? root : members[begin + (i - half)], members[i], use - 1});
}

/// Every rank gets a parcel just before it first needs it: alone, from the rank that got it last before, so that a ring
/// is a ring; several at a time, from the owner through each other.
std::vector<KeyMove> key_moves(const WorkTable& work, const SequenceLayout& layout) {
  std::map<Parcel, std::map<int, std::vector<int>>> users;  // parcel → slot of first use → ranks
  for (int rank = 0; rank < int(work.size()); ++rank) {
    std::map<Parcel, int> first;
    for (int slot = 0; slot < int(work[rank].size()); ++slot)
      for (const Work& w : work[rank][slot]) first.emplace(Parcel{w.key_chunk, w.group}, slot);
    for (const auto& [parcel, slot] : first)
      if (layout.chunks()[parcel.first].owner != rank) users[parcel][slot].push_back(rank);
  }
  std::vector<KeyMove> moves;
  for (const auto& [parcel, by_slot] : users) {
    const int owner = layout.chunks()[parcel.first].owner;
    int latest = owner;
    for (const auto& [slot, members] : by_slot) {
      deliver(parcel, members, 0, members.size(), slot, members.size() == 1 ? latest : owner, moves);
      latest = members.back();
    }
  }
  // In the order of slots, so that both ends list their messages alike.
  std::stable_sort(moves.begin(), moves.end(), [](const KeyMove& a, const KeyMove& b) { return a.slot < b.slot; });
  return moves;
}

/// Where the rows of a parcel are worked on, in order.
struct Visit {
  int slot, rank;
};

std::map<Parcel, std::vector<Visit>> row_visits(const WorkTable& work) {
  std::map<Parcel, std::vector<Visit>> visits;
  for (int rank = 0; rank < int(work.size()); ++rank)
    for (int slot = 0; slot < int(work[rank].size()); ++slot)
      for (const Work& w : work[rank][slot]) {
        std::vector<Visit>& list = visits[{w.query_chunk, w.group}];
        if (list.empty() || list.back().slot != slot || list.back().rank != rank) list.push_back({slot, rank});
      }
  for (auto& [parcel, list] : visits)
    std::stable_sort(list.begin(), list.end(), [](const Visit& a, const Visit& b) { return a.slot < b.slot; });
  return visits;
}

/// A table under construction: slot `slot` of the work is table slot `slot + lead`.
class Builder {
 public:
  Builder(const WorkTable& work, const SequenceLayout& layout, const std::vector<KeyMove>& keys)
      : layout_(layout), visits_(row_visits(work)), work_slots_(int(work[0].size())) {
    for (const KeyMove& move : keys) lead_ = std::max(lead_, -move.slot);
    for (const auto& [parcel, list] : visits_)
      if (owner(parcel) != list.front().rank) lead_ = std::max(lead_, 1 - list.front().slot);
    table_.assign(work.size(), std::vector<Slot>(std::size_t(lead_ + work_slots_)));
    for (std::size_t rank = 0; rank < work.size(); ++rank)
      for (int slot = 0; slot < work_slots_; ++slot) table_[rank][lead_ + slot].work = work[rank][slot];
    for (const KeyMove& m : keys) move(&Slot::send_keys, m.slot, &Slot::receive_keys, m.slot, m.parcel, m.from, m.to);
    for (const auto& [parcel, list] : visits_) move_rows(parcel, list);
  }

  /// The keys came from `from` to `to`; their gradients go back in the mirrored slot.
  void move_gradients(const KeyMove& m) {
    const int slot = work_slots_ - 1 - m.slot;
    move(&Slot::send_gradients, slot - 1, &Slot::receive_gradients, slot, m.parcel, m.to, m.from);
  }

  SlotTable take() { return std::move(table_); }

 private:
  using List = std::vector<Transfer> Slot::*;

  int owner(const Parcel& parcel) const { return layout_.chunks()[parcel.first].owner; }

  void move(List send, int send_slot, List receive, int receive_slot, const Parcel& parcel, int from, int to) {
    const std::size_t needed = std::size_t(lead_ + std::max(send_slot, receive_slot)) + 1;
    for (std::vector<Slot>& slots : table_)
      if (slots.size() < needed) slots.resize(needed);
    (table_[from][lead_ + send_slot].*send).push_back({parcel.first, parcel.second, to});
    (table_[to][lead_ + receive_slot].*receive).push_back({parcel.first, parcel.second, from});
  }

  void move_rows(const Parcel& parcel, const std::vector<Visit>& list) {
    const Visit first = list.front(), last = list.back();
    const int home = owner(parcel);
    if (first.rank != home)
      move(&Slot::send_rows, first.slot - 1, &Slot::receive_rows, first.slot - 1, parcel, home, first.rank);
    for (std::size_t i = 1; i < list.size(); ++i)
      if (list[i].rank != list[i - 1].rank)
        move(&Slot::send_states, list[i - 1].slot, &Slot::receive_states, list[i].slot, parcel, list[i - 1].rank,
             list[i].rank);
    if (last.rank != home)
      move(&Slot::send_results, last.slot, &Slot::receive_results, last.slot + 1, parcel, last.rank, home);
  }

  const SequenceLayout& layout_;
  std::map<Parcel, std::vector<Visit>> visits_;
  int work_slots_, lead_ = 0;
  SlotTable table_;
};

WorkTable mirrored(WorkTable work) {
  for (auto& slots : work) {
    std::reverse(slots.begin(), slots.end());
    for (std::vector<Work>& slot : slots) std::reverse(slot.begin(), slot.end());
  }
  return work;
}

}  // namespace

SlotTable route_forward(const WorkTable& work, const SequenceLayout& layout) {
  return Builder(work, layout, key_moves(work, layout)).take();
}

SlotTable route_backward(const WorkTable& work, const SequenceLayout& layout) {
  const WorkTable back = mirrored(work);
  Builder builder(back, layout, key_moves(back, layout));
  // Latest first in forward is earliest first here.
  std::vector<KeyMove> forward = key_moves(work, layout);
  std::reverse(forward.begin(), forward.end());
  for (const KeyMove& move : forward) builder.move_gradients(move);
  return builder.take();
}

}  // namespace capstan::parallel
