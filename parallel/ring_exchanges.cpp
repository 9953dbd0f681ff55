#include "parallel/ring_exchanges.h"

#include "parallel/failure.h"

namespace capstan::parallel {

namespace {

constexpr int cargoes = 6;

void append(std::vector<RingMessage>& messages, RingCargo cargo, const std::vector<Transfer>& transfers) {
  for (const Transfer& way : transfers) messages.push_back({cargo, way});
}

/// Rows and their state are two messages.
void append_states(std::vector<RingMessage>& messages, const std::vector<Transfer>& transfers) {
  for (const Transfer& way : transfers) {
    messages.push_back({RingCargo::state_rows, way});
    messages.push_back({RingCargo::state, way});
  }
}

}  // namespace

SlotExchanges exchanges_of(const std::vector<Slot>& slots, std::size_t slot) {
  const Slot& now = slots[slot];
  SlotExchanges exchanges;
  if (slot > 0) {
    const Slot& before = slots[slot - 1];
    append_states(exchanges.states.done, before.send_states);
    append(exchanges.others.done, RingCargo::gradients, before.send_gradients);
    append(exchanges.others.done, RingCargo::results, before.send_results);
  }
  append_states(exchanges.states.receives, now.receive_states);
  append(exchanges.others.receives, RingCargo::gradients, now.receive_gradients);
  append(exchanges.others.receives, RingCargo::results, now.receive_results);
  append(exchanges.others.sends, RingCargo::keys, now.send_keys);
  append(exchanges.others.receives, RingCargo::keys, now.receive_keys);
  append(exchanges.others.sends, RingCargo::rows, now.send_rows);
  append(exchanges.others.receives, RingCargo::rows, now.receive_rows);
  return exchanges;
}

int tag_of(const RingMessage& message, int groups) {
  return ((message.way.chunk * groups + message.way.group) * cargoes + int(message.cargo)) % tags::first;
}

}  // namespace capstan::parallel
