#pragma once
// A schedule is a table: per rank, a list of slots; per slot, which query chunk meets which key chunk and what moves
// meanwhile. Schedules are built by pure functions and enumerated by tests without any communicator; ring_attention
// only plays them.
//
//   contiguous forward, 3 ranks: slot s, rank r works on key chunk r - s (near → far) and hands it on to rank r + 1
//        slot   rank 0    rank 1    rank 2
//         0     q0·k0     q1·k1     q2·k2
//         1       -       q1·k0     q2·k1
//         2       -         -       q2·k0
//   backward: far → near; key chunk c goes from its owner straight to rank W-1, then down to c + 1, its gradients with it
//   and home last; the own chunk is done last by all
//        slot   rank 0    rank 1    rank 2
//         0       -         -         -        (k0 → rank 2)
//         1       -         -       q2·k0      (k1 → rank 2)
//         2       -       q1·k0     q2·k1
//         3     q0·k0     q1·k1     q2·k2

#include <string>
#include <vector>

#include "parallel/sequence_layout.h"

namespace capstan::parallel {

struct Work {
  int query_chunk, key_chunk;
};

/// `keys`: posted when the slot begins, in hand at the receiver from the next slot on.
/// `gradients`: sent when the slot's work is done; the receiver has posted it in the *next* slot and adds its own part
/// after.
struct Transfer {
  int chunk, peer;
};

struct Slot {
  std::vector<Work> work;
  std::vector<Transfer> send_keys, receive_keys;
  std::vector<Transfer> send_gradients, receive_gradients;
};

struct RingSchedule {
  std::string name;
  std::vector<std::vector<Slot>> forward;   ///< [rank][slot]; all ranks have the same number of slots
  std::vector<std::vector<Slot>> backward;  ///< [rank][slot]
};

RingSchedule contiguous_schedule(const SequenceLayout& layout);

/// By the recipe's name; "auto" is "contiguous".
RingSchedule make_schedule(const std::string& name, const SequenceLayout& layout);

}  // namespace capstan::parallel
