#include "parallel/ring_schedule.h"

#include "kernels/check.h"

namespace capstan::parallel {

namespace {

using Table = std::vector<std::vector<Slot>>;

void move_keys(Table& table, int slot, int chunk, int from, int to) {
  table[from][slot].send_keys.push_back({chunk, to});
  table[to][slot].receive_keys.push_back({chunk, from});
}

void move_gradients(Table& table, int slot, int chunk, int from, int to) {
  table[from][slot].send_gradients.push_back({chunk, to});
  table[to][slot + 1].receive_gradients.push_back({chunk, from});
}

Table contiguous_forward(int ranks) {
  Table table(ranks, std::vector<Slot>(ranks));
  for (int rank = 0; rank < ranks; ++rank)
    for (int slot = 0; slot <= rank; ++slot) {
      const int chunk = rank - slot;
      table[rank][slot].work.push_back({rank, chunk});
      if (rank + 1 < ranks) move_keys(table, slot, chunk, rank, rank + 1);
    }
  return table;
}

Table contiguous_backward(int ranks) {
  Table table(ranks, std::vector<Slot>(ranks + 1));
  for (int chunk = 0; chunk + 1 < ranks; ++chunk) move_keys(table, chunk, chunk, chunk, ranks - 1);
  for (int rank = 0; rank < ranks; ++rank)
    for (int chunk = 0; chunk <= rank; ++chunk) {
      const int slot = chunk - rank + ranks;
      table[rank][slot].work.push_back({rank, chunk});
      if (rank - 1 > chunk) move_keys(table, slot, chunk, rank, rank - 1);
      if (rank > chunk) move_gradients(table, slot, chunk, rank, rank - 1);
    }
  return table;
}

}  // namespace

RingSchedule contiguous_schedule(const SequenceLayout& layout) {
  CAPSTAN_CHECK(int(layout.chunks().size()) == layout.ranks(), "{} chunks on {} ranks", layout.chunks().size(),
                layout.ranks());
  return RingSchedule{"contiguous", contiguous_forward(layout.ranks()), contiguous_backward(layout.ranks())};
}

RingSchedule make_schedule(const std::string& name, const SequenceLayout& layout) {
  if (name == "auto" || name == "contiguous") return contiguous_schedule(layout);
  fail(ExitCode::config, "grid.schedule = {}: allowed are auto and contiguous", name);
}

}  // namespace capstan::parallel
