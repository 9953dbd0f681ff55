#include "parallel/ring_player.h"

#include "kernels/elementwise.h"
#include "parallel/ring_fields.h"

namespace capstan::parallel {

namespace {

/// A gradient parcel as one vector: all its fields have the compute type.
View as_vector(const Parcel& parcel, kernels::DType type) {
  const View& bytes = parcel.message();
  return View(bytes.data(), type, bytes.device(), {bytes.bytes() / kernels::size_of(type)});
}

}  // namespace

RingPlayer::RingPlayer(const Ring& ring, const RingRoles& roles, const std::vector<Slot>& slots)
    : ring_(ring), roles_(roles), slots_(slots) {
  for (std::size_t s = 0; s < slots.size(); ++s) {
    for (const Work& w : slots[s].work) {
      keys_until_[{w.key_chunk, w.group}] = s;
      rows_until_[{w.query_chunk, w.group}] = s;
    }
    for (const Transfer& t : slots[s].send_keys) keys_until_[{t.chunk, t.group}] = s;
    for (const Transfer& t : slots[s].send_keys) moving_keys_.insert({t.chunk, t.group});
    for (const auto* list : {&slots[s].send_gradients, &slots[s].receive_gradients})
      for (const Transfer& t : *list) moving_gradients_.insert({t.chunk, t.group});
  }
}

Parcel RingPlayer::packed(const Fields& like, const Key& key) const {
  return Parcel::packed(like, ring_.layout, roles_.steps, part(key));
}

Parcel RingPlayer::own(const Fields& fields, const Key& key) const {
  if (Parcel::may_be_window(part(key))) return Parcel::window(fields, ring_.layout, roles_.steps, part(key));
  Parcel copy = packed(fields, key);
  copy.copy_from(fields, ring_.layout, roles_.steps, part(key));
  return copy;
}

void RingPlayer::complete(KeysInHand& in_hand, const Key& key) const {
  if (!roles_.make_z) return;
  const std::int64_t batch = roles_.keys[key_k].whole.dim(0), tokens = ring_.layout.chunks()[key.first].tokens();
  const Field& k = roles_.keys[key_k];
  in_hand.z_memory =
      Tensor({batch, tokens, roles_.groups_of_z, roles_.head_size}, kernels::wide(k.whole.type()), k.whole.device());
  for (std::int64_t b = 0; b < batch; ++b) {
    in_hand.made_z.push_back(in_hand.z_memory.view()[b]);
    roles_.make_z(in_hand.made_z.back(), in_hand.keys.at(key_position, b));
  }
}

/// Own keys are packed when they are first asked for; those that never leave are read where they are.
KeysInHand& RingPlayer::keys(const Key& key) {
  const auto found = keys_.find(key);
  if (found != keys_.end()) return found->second;
  CAPSTAN_CHECK(is_mine(key.first), "rank {} has no keys of chunk {}, group {}", ring_.comm.rank(), key.first,
                key.second);
  KeysInHand& in_hand = keys_[key];
  if (moving_keys_.contains(key)) {
    in_hand.keys = packed(roles_.keys, key);
    in_hand.keys.copy_from(roles_.keys, ring_.layout, roles_.steps, part(key));
  } else {
    in_hand.keys = own(roles_.keys, key);
  }
  complete(in_hand, key);
  return in_hand;
}

RowsInHand& RingPlayer::rows(const Key& key) {
  const auto found = rows_.find(key);
  if (found != rows_.end()) return found->second;
  CAPSTAN_CHECK(is_mine(key.first), "rank {} has no rows of chunk {}, group {}", ring_.comm.rank(), key.first,
                key.second);
  RowsInHand& in_hand = rows_[key];
  if (Parcel::may_be_window(part(key))) {
    in_hand.rows = Parcel::window(roles_.rows, *roles_.row_layout, roles_.steps, part(key));
    in_hand.state = Parcel::window(roles_.state, *roles_.row_layout, roles_.steps, part(key));
    return in_hand;
  }
  in_hand.rows = packed(roles_.rows, key);
  in_hand.rows.copy_from(roles_.rows, *roles_.row_layout, roles_.steps, part(key));
  in_hand.state = packed(roles_.state, key);
  roles_.begin(in_hand);
  return in_hand;
}

/// A rank that only hands on what passes through adds zero. Gradients of own keys that stay go where they belong at once.
Parcel& RingPlayer::gradients(const Key& key) {
  const auto found = gradients_.find(key);
  if (found != gradients_.end()) return found->second;
  const bool stays = is_mine(key.first) && !moving_gradients_.contains(key);
  return gradients_.emplace(key, stays ? own(roles_.key_gradients, key) : packed(roles_.key_gradients, key))
      .first->second;
}

/// Rows that leave home take a copy of their part of the local arrays along; visitors leave as they are.
RowsInHand RingPlayer::rows_that_leave(const Key& key) {
  RowsInHand leaving = std::move(rows(key));
  rows_.erase(key);
  if (leaving.rows.is_packed()) return leaving;
  RowsInHand copy{packed(roles_.rows, key), packed(roles_.state, key)};
  copy.rows.copy_from(roles_.rows, *roles_.row_layout, roles_.steps, part(key));
  copy.state.copy_from(roles_.state, *roles_.row_layout, roles_.steps, part(key));
  return copy;
}

void RingPlayer::add_send(Moving& moving, const RingMessage& message) {
  const Transfer& way = message.way;
  if (empty(way.chunk)) return;
  const Key key{way.chunk, way.group};
  const auto send = [&](const Parcel& parcel) {
    moving.sends.push_back({parcel.message(), way.peer, tag_of(message, ring_.schedule.groups)});
  };
  switch (message.cargo) {
    case RingCargo::keys: return send(keys(key).keys);
    case RingCargo::rows:  // packed for the message, and at home still
      moving.leaving.push_back(packed(roles_.rows, key));
      moving.leaving.back().copy_from(roles_.rows, *roles_.row_layout, roles_.steps, part(key));
      return send(moving.leaving.back());
    case RingCargo::state_rows:
      moving.rows_leaving.push_back(rows_that_leave(key));
      return send(moving.rows_leaving.back().rows);
    case RingCargo::state:  // of the rows before it
      return send(moving.rows_leaving.back().state);
    case RingCargo::gradients:
      moving.leaving.push_back(std::move(gradients(key)));
      gradients_.erase(key);
      return send(moving.leaving.back());
    case RingCargo::results:
      moving.rows_leaving.push_back(std::move(rows(key)));
      rows_.erase(key);
      return send(moving.rows_leaving.back().state);
  }
}

void RingPlayer::add_receive(Moving& moving, const RingMessage& message) {
  const Transfer& way = message.way;
  if (empty(way.chunk)) return;
  const Key key{way.chunk, way.group};
  const auto receive = [&](const Parcel& parcel) {
    moving.receives.push_back({parcel.message(), way.peer, tag_of(message, ring_.schedule.groups)});
  };
  switch (message.cargo) {
    case RingCargo::keys: moving.keys[key].keys = packed(roles_.keys, key); return receive(moving.keys[key].keys);
    case RingCargo::rows:
      moving.rows[key] = {packed(roles_.rows, key), packed(roles_.state, key)};
      return receive(moving.rows[key].rows);
    case RingCargo::state_rows:
      moving.states[key] = {packed(roles_.rows, key), packed(roles_.state, key)};
      return receive(moving.states[key].rows);
    case RingCargo::state:  // of the rows before it
      return receive(moving.states[key].state);
    case RingCargo::gradients:
      moving.gradients.emplace_back(key, packed(roles_.key_gradients, key));
      return receive(moving.gradients.back().second);
    case RingCargo::results:
      moving.results.emplace_back(key, packed(roles_.state, key));
      return receive(moving.results.back().second);
  }
}

void RingPlayer::add_done(Moving& moving, const RingExchange& exchange) {
  for (const RingMessage& message : exchange.done) add_send(moving, message);
}

void RingPlayer::post(Moving& moving, const RingExchange& exchange) {
  for (const RingMessage& message : exchange.sends) add_send(moving, message);
  for (const RingMessage& message : exchange.receives) add_receive(moving, message);
  if (moving.sends.empty() && moving.receives.empty()) return;
  moving.pending = ring_.comm.exchange(moving.sends, moving.receives);
}

/// Waits, and puts what came where it belongs.
void RingPlayer::arrive(Moving& moving) {
  if (moving.pending) moving.pending->wait();
  for (auto& [key, in_hand] : moving.keys) complete(in_hand, key);
  for (auto& [key, in_hand] : moving.rows) roles_.begin(in_hand);
  keys_.merge(moving.keys);
  rows_.merge(moving.rows);
  rows_.merge(moving.states);
  const kernels::DType type = kernels::wide(roles_.keys[key_k].whole.type());
  for (const auto& [key, sum] : moving.gradients) kernels::add(as_vector(gradients(key), type), as_vector(sum, type));
  for (const auto& [key, result] : moving.results)
    result.copy_to(roles_.state, *roles_.row_layout, roles_.steps, part(key));
  moving = {};
}

void RingPlayer::work(const Slot& slot) {
  for (const Work& w : slot.work) {
    if (empty(w.query_chunk) || empty(w.key_chunk)) continue;
    const Key key{w.key_chunk, w.group};
    const KeysInHand& in_hand = keys(key);
    roles_.work(w, rows({w.query_chunk, w.group}), in_hand, roles_.key_gradients.empty() ? nullptr : &gradients(key));
  }
}

void RingPlayer::play() {
  Moving states, others;  // of the slot that begins next
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    const SlotExchanges now = exchanges_of(slots_, s);
    post(states, now.states);
    post(others, now.others);
    arrive(states);
    if (others.pending) others.pending->in_background();
    work(slots_[s]);
    arrive(others);
    if (s + 1 < slots_.size()) {
      const SlotExchanges next = exchanges_of(slots_, s + 1);
      add_done(states, next.states);
      add_done(others, next.others);
    }
    let_go(s);
  }
  for (auto& [key, sum] : gradients_)
    if (sum.is_packed()) sum.copy_to(roles_.key_gradients, ring_.layout, roles_.steps, part(key));
}

void RingPlayer::let_go(std::size_t slot) {
  std::erase_if(keys_, [&](const auto& entry) { return keys_until_.at(entry.first) <= slot; });
  std::erase_if(rows_, [&](const auto& entry) {
    if (rows_until_.at(entry.first) > slot) return false;
    if (entry.second.state.is_packed())
      entry.second.state.copy_to(roles_.state, *roles_.row_layout, roles_.steps, part(entry.first));
    return true;
  });
}

}  // namespace capstan::parallel
