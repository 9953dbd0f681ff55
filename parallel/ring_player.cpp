#include "parallel/ring_player.h"

#include "kernels/elementwise.h"
#include "parallel/ring_fields.h"

namespace capstan::parallel {

namespace {

enum Kind : int { of_keys, of_rows, of_state_rows, of_state, of_gradients, of_results, kinds };

constexpr int tags = 32768;

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

int RingPlayer::tag(const Key& key, int kind) const {
  return ((key.first * ring_.schedule.groups + key.second) * kinds + kind) % tags;
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

/// Rows that bring their state: what this slot works on may be among them.
void RingPlayer::receive_states(const Slot& slot) {
  std::vector<Message> receives;
  for (const Transfer& t : slot.receive_states) {
    if (empty(t.chunk)) continue;
    const Key key{t.chunk, t.group};
    RowsInHand& in_hand = rows_[key] = {packed(roles_.rows, key), packed(roles_.state, key)};
    receives.push_back({in_hand.rows.message(), t.peer, tag(key, of_state_rows)});
    receives.push_back({in_hand.state.message(), t.peer, tag(key, of_state)});
  }
  if (!receives.empty()) ring_.comm.exchange({}, receives)->wait();
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
  const kernels::DType type_of_gradients = kernels::wide(roles_.keys[key_k].whole.type());
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    const Slot& slot = slots_[s];
    receive_states(slot);
    std::vector<Message> sends, receives;
    std::map<Key, KeysInHand> new_keys;
    std::map<Key, RowsInHand> new_rows;
    std::vector<std::pair<Key, Parcel>> new_gradients, results;
    const auto each = [&](const std::vector<Transfer>& list, auto&& body) {
      for (const Transfer& t : list)
        if (!empty(t.chunk)) body(t, Key{t.chunk, t.group});
    };
    each(slot.send_keys, [&](const Transfer& t, const Key& key) {
      sends.push_back({keys(key).keys.message(), t.peer, tag(key, of_keys)});
    });
    each(slot.receive_keys, [&](const Transfer& t, const Key& key) {
      new_keys[key].keys = packed(roles_.keys, key);
      receives.push_back({new_keys[key].keys.message(), t.peer, tag(key, of_keys)});
    });
    std::vector<Parcel> going;  // rows on their way out: packed for the message, and at home still
    going.reserve(slot.send_rows.size());
    each(slot.send_rows, [&](const Transfer& t, const Key& key) {
      going.push_back(packed(roles_.rows, key));
      going.back().copy_from(roles_.rows, *roles_.row_layout, roles_.steps, part(key));
      sends.push_back({going.back().message(), t.peer, tag(key, of_rows)});
    });
    each(slot.receive_rows, [&](const Transfer& t, const Key& key) {
      new_rows[key] = {packed(roles_.rows, key), packed(roles_.state, key)};
      receives.push_back({new_rows[key].rows.message(), t.peer, tag(key, of_rows)});
    });
    each(slot.receive_gradients, [&](const Transfer& t, const Key& key) {
      new_gradients.emplace_back(key, packed(roles_.key_gradients, key));
      receives.push_back({new_gradients.back().second.message(), t.peer, tag(key, of_gradients)});
    });
    each(slot.receive_results, [&](const Transfer& t, const Key& key) {
      results.emplace_back(key, packed(roles_.state, key));
      receives.push_back({results.back().second.message(), t.peer, tag(key, of_results)});
    });

    const std::unique_ptr<Pending> pending = ring_.comm.exchange(sends, receives);
    pending->in_background();
    work(slot);
    pending->wait();

    for (auto& [key, in_hand] : new_keys) complete(in_hand, key);
    for (auto& [key, in_hand] : new_rows) roles_.begin(in_hand);
    keys_.merge(new_keys);
    rows_.merge(new_rows);
    for (const auto& [key, sum] : new_gradients)
      kernels::add(as_vector(gradients(key), type_of_gradients), as_vector(sum, type_of_gradients));
    for (const auto& [key, result] : results) result.copy_to(roles_.state, *roles_.row_layout, roles_.steps, part(key));
    send_what_is_done(slot);
    let_go(s);
  }
  if (sending_) sending_->wait();
  for (auto& [key, sum] : gradients_)
    if (sum.is_packed()) sum.copy_to(roles_.key_gradients, ring_.layout, roles_.steps, part(key));
}

void RingPlayer::send_what_is_done(const Slot& slot) {
  const bool anything = !slot.send_states.empty() || !slot.send_gradients.empty() || !slot.send_results.empty();
  if (!anything) return;
  if (sending_) sending_->wait();
  leaving_.clear();
  rows_leaving_.clear();
  std::vector<Message> sends;
  leaving_.reserve(slot.send_gradients.size());
  rows_leaving_.reserve(slot.send_states.size() + slot.send_results.size());
  for (const Transfer& t : slot.send_gradients) {
    if (empty(t.chunk)) continue;
    const Key key{t.chunk, t.group};
    leaving_.push_back(std::move(gradients(key)));
    gradients_.erase(key);
    sends.push_back({leaving_.back().message(), t.peer, tag(key, of_gradients)});
  }
  for (const Transfer& t : slot.send_states) {
    if (empty(t.chunk)) continue;
    const Key key{t.chunk, t.group};
    RowsInHand& in_hand = rows(key);
    if (!in_hand.rows.is_packed()) {  // it leaves home
      RowsInHand copy{packed(roles_.rows, key), packed(roles_.state, key)};
      copy.rows.copy_from(roles_.rows, *roles_.row_layout, roles_.steps, part(key));
      copy.state.copy_from(roles_.state, *roles_.row_layout, roles_.steps, part(key));
      in_hand = std::move(copy);
    }
    rows_leaving_.push_back(std::move(in_hand));
    rows_.erase(key);
    sends.push_back({rows_leaving_.back().rows.message(), t.peer, tag(key, of_state_rows)});
    sends.push_back({rows_leaving_.back().state.message(), t.peer, tag(key, of_state)});
  }
  for (const Transfer& t : slot.send_results) {
    if (empty(t.chunk)) continue;
    const Key key{t.chunk, t.group};
    rows_leaving_.push_back(std::move(rows(key)));
    rows_.erase(key);
    sends.push_back({rows_leaving_.back().state.message(), t.peer, tag(key, of_results)});
  }
  sending_ = ring_.comm.exchange(sends, {});
  sending_->in_background();
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
