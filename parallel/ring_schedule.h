#pragma once
// A schedule is a table: per rank, a list of slots; per slot, which query chunk meets which key chunk for which head
// group, and what moves meanwhile. Schedules are built by pure functions and enumerated by tests without any
// communicator; ring_attention only plays them.
//
//   contiguous forward, 3 ranks: slot s, rank r works on key chunk r - s (near → far), which came from rank r - 1
//        slot   rank 0    rank 1    rank 2
//         0     q0·k0     q1·k1     q2·k2
//         1       -       q1·k0     q2·k1
//         2       -         -       q2·k0
//   ordered_pull forward, 2 ranks (4 chunks, rank 0 has 0 and 3, rank 1 has 1 and 2): phase A brings the high rows near → far
//   to the rank's low chunk, phase B both row blocks on together; every rank has one pair per slot
//        slot   0       1       2       3       4
//        rank 0 q3·k3   q3·k2   q3·k1   q3·k0   q0·k0
//        rank 1 q2·k2   q2·k1   q1·k1   q2·k0   q1·k0
//
// A schedule names only the work (ring_works.cpp). Who sends what follows from it (ring_routes.cpp). Backward is forward
// in reverse: its work mirrored, so far → near; a key chunk's gradients go back the way its keys came in forward.

#include <string>
#include <vector>

#include "parallel/sequence_layout.h"

namespace capstan::parallel {

/// Head group a of `groups`: kv heads [a G/groups, (a + 1) G/groups) and the query heads that read them.
struct Work {
  int query_chunk, key_chunk, group;
};

/// A chunk of one head group on its way.
struct Transfer {
  int chunk, group, peer;
};

struct Slot {
  std::vector<Work> work;
  /// Posted when the slot begins, in hand at the receiver from the next slot on: keys, and rows that others work on.
  std::vector<Transfer> send_keys, receive_keys, send_rows, receive_rows;
  /// Rows that travel with their state (pass_q): sent when the slot's work is done; the receiver has them before it
  /// begins the slot's work.
  std::vector<Transfer> send_states, receive_states;
  /// Sent when the slot's work is done; received *during* the next slot. Gradients of keys are added to the receiver's
  /// own, results of rows are put in their place at home.
  std::vector<Transfer> send_gradients, receive_gradients, send_results, receive_results;
};

using SlotTable = std::vector<std::vector<Slot>>;  ///< [rank][slot]; all ranks have the same number of slots

struct RingSchedule {
  std::string name;
  int groups = 1;
  SlotTable forward, backward;
};

/// What a ring is to be planned for.
struct RingRequest {
  std::string schedule = "auto";  ///< auto, contiguous, zigzag, ordered_pull, allgather, ulysses, pass_q
  int ranks = 1;
  int heads = 0;  ///< ulysses: ranks that split the heads; 0: all
  int kv_heads = 1;
  std::int64_t length = 0, unit = 1;  ///< unit: lcm(tile, block)
};

/// The layout that the schedule needs, and its table.
struct RingPlan {
  SequenceLayout layout;
  RingSchedule schedule;
};

std::vector<std::string> schedule_names();
/// auto: ordered_pull, and contiguous for one rank.
std::string resolve_schedule(const std::string& name, int ranks);
/// False for zigzag: it brings key chunks out of order, which a carried sum cannot take.
bool keeps_key_order(const std::string& schedule);
/// Why this request cannot be met, in one sentence with what to do; empty if it can.
std::string refuse_ring(const RingRequest& request);
/// Errors (config): refuse_ring's sentence.
RingPlan plan_ring(const RingRequest& request);
/// The table alone, on a layout that fits it. groups: as in the RingPlan (allgather: kv heads; ulysses: heads).
RingSchedule make_schedule(const std::string& name, const SequenceLayout& layout, int groups);

/// Row states travel to the key chunks of a cache: queries are the chunks from first_query on, which see all.
/// Forward only.
RingSchedule pass_q_schedule(const SequenceLayout& layout, int first_query);

/// [rank][slot]: works in the order in which they are done.
using WorkTable = std::vector<std::vector<std::vector<Work>>>;
/// forward from its work alone: adds what must move.
SlotTable route_forward(const WorkTable& work, const SequenceLayout& layout);
/// backward from *forward's* work.
SlotTable route_backward(const WorkTable& work, const SequenceLayout& layout);

}  // namespace capstan::parallel
