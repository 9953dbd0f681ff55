#pragma once
// Plays a rank's part of a schedule's table: keeps the parcels in hand, posts each slot's exchanges before its work, and lets
// go of what no later slot needs. Forward and backward play the same way; what they do with a pair of parcels is theirs.
//
// Buffers are double: a slot works on parcels that are in hand, while the next ones arrive in parcels of their own. A parcel
// that is in an exchange is neither written nor freed before the exchange was awaited; those in hand may be read meanwhile, and
// sent. On a GPU the host runs ahead: an exchange begins when the work before it is done there, and moves on a queue of its
// own, beside the work of its slot; the work of the next slot comes after it. So memory that an exchange has used is free for
// that work, and no rank waits for its GPU.

#include <functional>
#include <map>
#include <memory>
#include <set>

#include "parallel/parcel.h"
#include "parallel/ring_attention.h"
#include "parallel/ring_exchanges.h"

namespace capstan::parallel {

/// Keys of a chunk and head group, in hand.
struct KeysInHand {
  Parcel keys;
  std::vector<View> made_z;  ///< per sequence [n, G', D], where z does not travel
  Tensor z_memory;
};

/// Rows of a chunk and head group, with their state.
struct RowsInHand {
  Parcel rows, state;
};

/// What a walk moves and does. Fields are the rank's local arrays; their order is that of ring_fields.h.
struct RingRoles {
  Fields keys, rows, state;
  Fields key_gradients;                        ///< empty in forward
  const SequenceLayout* row_layout = nullptr;  ///< the ring's chunks, of which rows may be there for the last ones only
  Steps steps;
  std::function<void(const View& z, const View& position)> make_z;  ///< or empty
  std::int64_t groups_of_z = 0, head_size = 0;                      ///< of a made z, per head group
  /// Sets the state of packed rows to what it begins with. Windows begin as their local arrays are.
  std::function<void(const RowsInHand&)> begin;
  std::function<void(const Work&, const RowsInHand&, const KeysInHand&, const Parcel* key_gradients)> work;
};

class RingPlayer {
 public:
  RingPlayer(const Ring& ring, const RingRoles& roles, const std::vector<Slot>& slots);
  /// Afterwards results of own rows and gradients of own keys are in the local arrays.
  void play();

 private:
  using Key = std::pair<int, int>;  // chunk, group

  bool empty(int chunk) const { return ring_.layout.chunks()[chunk].tokens() == 0; }
  bool is_mine(int chunk) const { return ring_.layout.chunks()[chunk].owner == ring_.comm.rank(); }
  Part part(const Key& key) const { return {key.first, key.second, ring_.schedule.groups}; }
  Parcel packed(const Fields& like, const Key& key) const;
  /// This rank's part of local arrays that are no message: a window, if heads are not split.
  Parcel own(const Fields& fields, const Key& key) const;

  KeysInHand& keys(const Key& key);
  RowsInHand& rows(const Key& key);
  Parcel& gradients(const Key& key);
  void complete(KeysInHand& keys, const Key& key) const;

  /// An exchange with the parcels of its messages.
  struct Moving {
    std::vector<Message> sends, receives;
    std::vector<Parcel> leaving;
    std::vector<RowsInHand> rows_leaving;
    std::map<Key, KeysInHand> keys;
    std::map<Key, RowsInHand> rows;    // to begin with
    std::map<Key, RowsInHand> states;  // to go on from
    std::vector<std::pair<Key, Parcel>> gradients, results;
    std::unique_ptr<Pending> pending;  // goes first, and lets go of the parcels
  };

  void add_send(Moving& moving, const RingMessage& message);
  void add_receive(Moving& moving, const RingMessage& message);
  /// What the slot before has finished leaves: it is no longer in hand.
  void add_done(Moving& moving, const RingExchange& exchange);
  /// Adds the rest, and starts it all.
  void post(Moving& moving, const RingExchange& exchange);
  void arrive(Moving& moving);
  RowsInHand rows_that_leave(const Key& key);
  void work(const Slot& slot);
  void let_go(std::size_t slot);

  const Ring& ring_;
  const RingRoles& roles_;
  const std::vector<Slot>& slots_;
  std::map<Key, std::size_t> keys_until_, rows_until_;  // last slot that needs them
  std::set<Key> moving_keys_, moving_gradients_;        // those that are messages in some slot
  std::map<Key, KeysInHand> keys_;
  std::map<Key, RowsInHand> rows_;
  std::map<Key, Parcel> gradients_;  // this rank's parts, and what others summed so far
};

}  // namespace capstan::parallel
