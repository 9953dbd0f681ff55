#include "parallel/ring_attention.h"

#include <algorithm>

#include "kernels/elementwise.h"

namespace capstan::parallel {

using kernels::DType;
using kernels::KeyChunk;
using kernels::QueryChunk;
using kernels::Shape;

namespace {

/// Query rows between two calls of Pending::progress, in tiles.
constexpr std::int64_t tiles_per_progress = 8;

bool z_travels(const RingInputs& in) { return in.z && !in.make_z; }

/// One chunk's keys of all B sequences in one message, and views into it.
struct KeyBlock {
  Tensor memory, made_z;
  View k, v, z;                    // [B, n, G, D]
  View index, position, document;  // [B, n]

  KeyChunk sequence(std::int64_t b) const { return {k[b], v[b], z ? z[b] : View(), index[b], document[b]}; }
};

/// Carves consecutive views out of one buffer, so that a chunk is one message.
class Carver {
 public:
  Carver(Tensor& memory, kernels::Device device) : memory_(memory), device_(device) {}
  View take(const Shape& shape, DType type) {
    const View view(memory_.as<std::uint8_t>() + used_, type, device_, shape);
    used_ += view.bytes();
    return view;
  }

 private:
  Tensor& memory_;
  kernels::Device device_;
  std::int64_t used_ = 0;
};

KeyBlock make_key_block(const RingInputs& in, std::int64_t tokens) {
  const std::int64_t batch = in.k.dim(0), groups = in.k.dim(2), depth = in.k.dim(3);
  KeyBlock block;
  block.memory =
      Tensor({chunk_bytes(batch, tokens, groups, depth, z_travels(in), in.k.type()).keys}, DType::u8, in.k.device());
  Carver carver(block.memory, in.k.device());
  const Shape keys{batch, tokens, groups, depth}, row{batch, tokens};
  // 8-byte integers first, so that every view is aligned whatever the sizes.
  for (View* array : {&block.index, &block.position, &block.document}) *array = carver.take(row, DType::i64);
  for (View* array : {&block.k, &block.v}) *array = carver.take(keys, in.k.type());
  if (z_travels(in)) {
    block.z = carver.take(keys, in.k.type());
  } else if (in.z) {
    block.made_z = Tensor(keys, in.k.type(), in.k.device());
    block.z = block.made_z;
  }
  return block;
}

/// What does not travel is made on arrival.
void complete(KeyBlock& block, const RingInputs& in) {
  for (std::int64_t b = 0; in.make_z && b < block.z.dim(0); ++b) in.make_z(block.z[b], block.position[b]);
}

/// Rows [begin, begin + n) of each sequence.
void copy_rows(const View& target, const View& source, std::int64_t begin) {
  for (std::int64_t b = 0; b < source.dim(0); ++b) target[b].copy_from(source[b].rows(begin, begin + target.dim(1)));
}

KeyBlock pack_own(const RingInputs& in, std::int64_t begin, std::int64_t tokens) {
  KeyBlock block = make_key_block(in, tokens);
  copy_rows(block.k, in.k, begin);
  copy_rows(block.v, in.v, begin);
  if (in.z) copy_rows(block.z, in.z, begin);
  copy_rows(block.index, in.rows.index, begin);
  copy_rows(block.position, in.rows.position, begin);
  copy_rows(block.document, in.rows.document, begin);
  return block;
}

/// Gradients of one chunk's keys, one message.
struct KeyGradients {
  Tensor memory;
  View all;         // everything, as one vector of the compute type
  View dk, dv, dz;  // [B, n, G, D]
};

KeyGradients make_key_gradients(const RingInputs& in, std::int64_t tokens) {
  const std::int64_t batch = in.k.dim(0), groups = in.k.dim(2), depth = in.k.dim(3);
  const Shape shape{batch, tokens, groups, depth};
  KeyGradients gradients;
  gradients.memory = Tensor({(z_travels(in) ? 3 : 2) * shape.elements()}, in.k.type(), in.k.device());
  gradients.all = gradients.memory;
  const auto part = [&](std::int64_t i) {
    return gradients.all.rows(i * shape.elements(), (i + 1) * shape.elements()).reshape(shape);
  };
  gradients.dk = part(0);
  gradients.dv = part(1);
  if (z_travels(in)) gradients.dz = part(2);
  return gradients;
}

/// Query rows [begin, end) of sequence b.
QueryChunk query_rows(const RingInputs& in, std::int64_t b, std::int64_t begin, std::int64_t end) {
  return {in.q[b].rows(begin, end), in.table ? in.table[b].rows(begin, end) : View(), in.rows.index[b].rows(begin, end),
          in.rows.document[b].rows(begin, end)};
}

constexpr int keys_tag(int chunk) { return 2 * chunk; }
constexpr int gradients_tag(int chunk) { return 2 * chunk + 1; }

/// The walk that forward and backward share: keeps the key chunks in hand, posts each slot's exchange before its work,
/// calls `work`, then lets go of what no later slot needs. Empty chunks neither move nor compute.
class Player {
 public:
  Player(const Ring& ring, const RingInputs& in, const std::vector<Slot>& slots) : ring_(ring), in_(in), slots_(slots) {
    for (int chunk : ring.layout.owned(ring.comm.rank()))
      held_.emplace(chunk, pack_own(in, ring.layout.local_offset(chunk), tokens(chunk)));
  }

  std::int64_t tokens(int chunk) const { return ring_.layout.chunks()[chunk].tokens(); }

  /// `before`: adds a slot's further messages; `work(slot, pending)`; `after`: when the slot's messages have arrived.
  template <class Before, class DoWork, class After> void play(Before&& before, DoWork&& work, After&& after) {
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      const Slot& slot = slots_[s];
      std::vector<Message> sends, receives;
      std::map<int, KeyBlock> arriving;
      for (const Transfer& t : slot.send_keys)
        if (tokens(t.chunk)) sends.push_back({held_.at(t.chunk).memory, t.peer, keys_tag(t.chunk)});
      for (const Transfer& t : slot.receive_keys)
        if (tokens(t.chunk)) {
          KeyBlock& block = arriving.emplace(t.chunk, make_key_block(in_, tokens(t.chunk))).first->second;
          receives.push_back({block.memory, t.peer, keys_tag(t.chunk)});
        }
      before(slot, sends, receives);
      const std::unique_ptr<Pending> pending = ring_.comm.exchange(sends, receives);
      for (const Work& w : slot.work)
        if (tokens(w.query_chunk) && tokens(w.key_chunk)) work(w, held_.at(w.key_chunk), *pending);
      pending->wait();
      after(slot);
      for (auto& [chunk, block] : arriving) complete(block, in_);
      held_.merge(arriving);
      std::erase_if(held_, [&](const auto& entry) { return !needed_after(s, entry.first); });
    }
  }

 private:
  bool needed_after(std::size_t slot, int chunk) const {
    for (std::size_t s = slot + 1; s < slots_.size(); ++s) {
      for (const Work& w : slots_[s].work)
        if (w.key_chunk == chunk) return true;
      for (const Transfer& t : slots_[s].send_keys)
        if (t.chunk == chunk) return true;
    }
    return false;
  }

  const Ring& ring_;
  const RingInputs& in_;
  const std::vector<Slot>& slots_;
  std::map<int, KeyBlock> held_;
};

/// Calls body(b, begin, end, first tile) for pieces of a query chunk that are whole tiles, with progress in between.
template <class Body>
void for_each_piece(const Ring& ring, const RingInputs& in, int chunk, std::int64_t tile, Pending& pending,
                    Body&& body) {
  const std::int64_t begin = ring.layout.local_offset(chunk), end = begin + ring.layout.chunks()[chunk].tokens();
  std::int64_t first_tile = 0;
  for (int c : ring.layout.owned(ring.comm.rank()))
    if (c < chunk) first_tile += (ring.layout.chunks()[c].tokens() + tile - 1) / tile;
  const std::int64_t piece = tiles_per_progress * tile;
  for (std::int64_t b = 0; b < in.q.dim(0); ++b)
    for (std::int64_t at = begin; at < end; at += piece) {
      body(b, at, std::min(end, at + piece), first_tile + (at - begin) / tile);
      pending.progress();
    }
}

std::int64_t local_tiles(const Ring& ring, std::int64_t tile) {
  std::int64_t tiles = 0;
  for (int c : ring.layout.owned(ring.comm.rank())) tiles += (ring.layout.chunks()[c].tokens() + tile - 1) / tile;
  return tiles;
}

}  // namespace

ChunkBytes chunk_bytes(std::int64_t batch, std::int64_t tokens, std::int64_t groups, std::int64_t head_size,
                       bool with_z, DType type) {
  const std::int64_t elements = batch * tokens * groups * head_size * (with_z ? 3 : 2) * kernels::size_of(type);
  return {elements + 3 * batch * tokens * 8, elements};
}

RingSaved ring_attention_forward(const Ring& ring, const RingInputs& in, const AttentionSettings& settings,
                                 AttentionStats* stats) {
  const std::int64_t batch = in.q.dim(0), local = in.q.dim(1), heads = in.q.dim(2), depth = in.q.dim(3);
  CAPSTAN_CHECK(local == ring.layout.local_tokens(ring.comm.rank()), "{} local tokens, the layout says {}", local,
                ring.layout.local_tokens(ring.comm.rank()));
  const DType type = in.q.type();
  const kernels::Device device = in.q.device();
  const std::int64_t tiles = local_tiles(ring, settings.tile);
  RingSaved saved;
  saved.o = Tensor({batch, local, heads, in.z ? 2 * depth : depth}, type, device);
  saved.lse = Tensor({batch, local, heads}, type, device);
  const Tensor l({batch, local, heads}, type, device);
  Tensor carry;
  if (in.table) {
    saved.horizon = Tensor({batch, tiles, heads}, DType::i64, device);
    saved.horizon_carry = Tensor({batch, local, heads}, DType::i64, device);
    carry = Tensor({batch, local, heads}, DType::i64, device);
  }
  // The whole shard as one state (lse holds the running maximum until the end); pieces of it per call.
  const kernels::AttentionState all{saved.o, saved.lse, l, carry, saved.horizon, saved.horizon_carry};
  attention_begin(all);
  const auto piece = [&](std::int64_t b, std::int64_t begin, std::int64_t end, std::int64_t tile) {
    const auto rows = [&](const View& x) { return x ? x[b].rows(begin, end) : View(); };
    const std::int64_t tile_end = tile + (end - begin + settings.tile - 1) / settings.tile;
    return kernels::AttentionState{rows(all.o),
                                   rows(all.m),
                                   rows(all.l),
                                   rows(all.carry),
                                   all.horizon ? all.horizon[b].rows(tile, tile_end) : View(),
                                   rows(all.horizon_carry)};
  };

  Player player(ring, in, ring.schedule.forward.at(ring.comm.rank()));
  player.play([](const Slot&, auto&, auto&) {},
              [&](const Work& work, const KeyBlock& block, Pending& pending) {
                for_each_piece(ring, in, work.query_chunk, settings.tile, pending,
                               [&](std::int64_t b, std::int64_t begin, std::int64_t end, std::int64_t tile) {
                                 attention_forward(piece(b, begin, end, tile), query_rows(in, b, begin, end),
                                                   block.sequence(b), settings, stats);
                               });
              },
              [](const Slot&) {});
  attention_finish(all);
  return saved;
}

/// Backward of ring_attention_forward: the same walk far → near. A key chunk's gradients ride behind it as one sum;
/// each rank computes its own part first and then adds it to what arrives, so that no rank waits for the sum before it
/// works.
void ring_attention_backward(const Ring& ring, const RingGradients& out, const RingInputs& in, const RingSaved& saved,
                             const View& d_o, const AttentionSettings& settings) {
  const int rank = ring.comm.rank();
  const Tensor delta = zeros_like(saved.lse);
  Tensor carry, gate_grad;
  if (in.table) {
    carry = zeros_like(saved.horizon_carry);
    gate_grad = zeros_like(saved.lse);
    out.dtable.fill_zero();
  }
  out.dq.fill_zero();
  kernels::attention_delta(delta, d_o, saved.o);
  kernels::attention_backward_begin({carry, gate_grad}, {saved.lse, delta, saved.horizon, saved.horizon_carry});

  std::map<int, KeyGradients> own, arriving,
      leaving;  // by chunk: this slot's part; what others summed so far; being sent
  std::unique_ptr<Pending> sending;
  // A rank without rows of its own still hands on what passes through: its part is zero.
  const auto part_of = [&](int chunk) -> KeyGradients& {
    const auto found = own.find(chunk);
    return found != own.end()
               ? found->second
               : own.emplace(chunk, make_key_gradients(in, ring.layout.chunks()[chunk].tokens())).first->second;
  };
  const auto work_on = [&](const Work& work, const KeyBlock& block, Pending& pending) {
    KeyGradients& part = part_of(work.key_chunk);
    for_each_piece(ring, in, work.query_chunk, settings.tile, pending,
                   [&](std::int64_t b, std::int64_t begin, std::int64_t end, std::int64_t tile) {
                     const auto rows = [&](const View& x) { return x ? x[b].rows(begin, end) : View(); };
                     const std::int64_t tile_end = tile + (end - begin + settings.tile - 1) / settings.tile;
                     const View horizon = in.table ? saved.horizon.view()[b].rows(tile, tile_end) : View();
                     attention_backward(
                         {rows(out.dq), rows(out.dtable), part.dk[b], part.dv[b], part.dz ? part.dz[b] : View()},
                         {rows(carry), rows(gate_grad)}, query_rows(in, b, begin, end), block.sequence(b), rows(d_o),
                         {rows(saved.lse), rows(delta), horizon, rows(saved.horizon_carry)}, settings);
                   });
  };
  Player player(ring, in, ring.schedule.backward.at(rank));
  player.play(
      [&](const Slot& slot, std::vector<Message>&, std::vector<Message>& receives) {
        for (const Transfer& t : slot.receive_gradients)
          if (player.tokens(t.chunk)) {
            KeyGradients& sum = arriving.emplace(t.chunk, make_key_gradients(in, player.tokens(t.chunk))).first->second;
            receives.push_back({sum.memory, t.peer, gradients_tag(t.chunk)});
          }
      },
      work_on,
      [&](const Slot& slot) {
        for (auto& [chunk, sum] : arriving) kernels::add(part_of(chunk).all, sum.all);
        arriving.clear();
        if (sending) sending->wait();
        leaving.clear();
        std::vector<Message> sends;
        for (const Transfer& t : slot.send_gradients)
          if (player.tokens(t.chunk)) {
            const KeyGradients& sum = leaving.emplace(t.chunk, std::move(part_of(t.chunk))).first->second;
            own.erase(t.chunk);
            sends.push_back({sum.memory, t.peer, gradients_tag(t.chunk)});
          }
        sending = ring.comm.exchange(sends, {});
      });
  if (sending) sending->wait();
  for (int chunk : ring.layout.owned(rank)) {
    if (!player.tokens(chunk)) continue;
    const KeyGradients& sum = part_of(chunk);
    const std::int64_t begin = ring.layout.local_offset(chunk);
    for (std::int64_t b = 0; b < in.k.dim(0); ++b) {
      const auto home = [&](const View& target, const View& part) {
        target[b].rows(begin, begin + part.dim(1)).copy_from(part[b]);
      };
      home(out.dk, sum.dk);
      home(out.dv, sum.dv);
      if (z_travels(in)) home(out.dz, sum.dz);
    }
  }
}

}  // namespace capstan::parallel
