#pragma once
// Which messages make up which exchange of a walk, and in which order: pure functions of a schedule's table, which tests
// enumerate without a communicator. RingPlayer posts exactly these.
//
// Both ends of a message post it in the exchange of the same number: `states` of slot s, then `others` of slot s. What a rank
// has finished in slot s - 1 therefore leaves with the exchanges of slot s, in which its receiver expects it, and not on its
// own. NCCL needs that (communicator.h): if every rank of a ring sent a gradient by itself, each would wait for a receiver that
// still waits for its own send to be done.

#include <vector>

#include "parallel/ring_schedule.h"

namespace capstan::parallel {

enum class RingCargo : int { keys, rows, state_rows, state, gradients, results };

struct RingMessage {
  RingCargo cargo;
  Transfer way;
};

/// One exchange of one rank. Both ends list the messages between them in the same order: `done` before `sends`.
struct RingExchange {
  std::vector<RingMessage> done;      ///< sends of what the slot before has finished
  std::vector<RingMessage> sends;     ///< sends of what is there when the slot begins
  std::vector<RingMessage> receives;  ///< of both
};

/// What a rank posts when a slot begins, before it waits for anything.
struct SlotExchanges {
  RingExchange states;  ///< awaited before the slot's work: rows with the state that the work goes on from
  RingExchange others;  ///< awaited after it
};

/// Of slot `slot` of a rank's part of the table.
SlotExchanges exchanges_of(const std::vector<Slot>& slots, std::size_t slot);

/// One number per message of a pair of ranks, the same at both ends. groups: of the schedule.
int tag_of(const RingMessage& message, int groups);

}  // namespace capstan::parallel
