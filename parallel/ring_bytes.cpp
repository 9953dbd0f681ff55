// What a schedule's table moves, counted without moving it.

#include <algorithm>

#include "parallel/ring_fields.h"

namespace capstan::parallel {

using kernels::DType;

RingBytes bytes_sent(const SequenceLayout& layout, const RingSchedule& schedule, int rank, const RingInputs& in,
                     const AttentionSettings& settings) {
  const DType type = in.q.type(), sums = kernels::wide(type);
  const kernels::Device device = in.q.device();
  const std::int64_t batch = in.q.dim(0), local = in.q.dim(1), heads = in.q.dim(2), depth = in.q.dim(3);
  const auto view = [&](const kernels::Shape& shape, DType of) { return View(nullptr, of, device, shape); };
  const View row = view({batch, local, heads}, sums), count = view({batch, local, heads}, DType::i64),
             offset = in.terms.offset_source ? count : View(), d_offset = in.terms.offset_source ? row : View(),
             o = view({batch, local, heads, in.z ? 2 * depth : depth}, sums), d_o = view(o.shape(), type),
             tiles = view({batch, layout.local_steps(rank, settings.tile), heads}, DType::i64);
  const View gate_k = in.terms.gate_k[1];
  const View pooled =
      gate_k ? view({batch, layout.local_steps(rank, block_of(settings)), gate_k.dim(2), gate_k.dim(3)}, gate_k.type())
             : View();
  const auto gradient_of = [&](const View& x) { return x ? view(x.shape(), sums) : View(); };
  const auto per_sum = [&](const View& x) {
    return PerSum{has_sum(settings, 0) ? x : View(), has_sum(settings, 1) ? x : View()};
  };

  const Fields keys = key_fields(in, pooled, offset);
  const Fields gradients =
      key_gradient_fields(gradient_of(in.k), gradient_of(in.v), z_travels(in) ? in.z : View(),
                          in.gates_on_values ? View() : gradient_of(in.terms.gate_k[0]), gradient_of(pooled), d_offset);
  const Fields rows = row_fields(in, offset);
  const Fields state = softmax_fields(o, row, row, per_sum(count), per_sum(tiles));
  const Fields back_rows = joined(rows, softmax_fields(d_o, row, row, per_sum(count), per_sum(tiles)));
  RingTerms d_terms = in.terms;
  d_terms.gate_q = {gradient_of(in.terms.gate_q[0]), gradient_of(in.terms.gate_q[1])};
  const Fields back_state = row_gradient_fields(gradient_of(in.q), d_terms, d_offset, per_sum(count), per_sum(row));

  const Steps steps{settings.tile, block_of(settings)};
  const auto bytes = [&](const std::vector<Transfer>& list, const Fields& fields) {
    std::int64_t total = 0;
    for (const Transfer& t : list)
      if (layout.chunks()[t.chunk].tokens())
        total += Parcel::bytes(fields, layout, steps, {t.chunk, t.group, schedule.groups});
    return total;
  };
  const auto of_slots = [&](const std::vector<Slot>& slots, const Fields& row_list, const Fields& state_list) {
    std::int64_t total = 0;
    for (const Slot& s : slots)
      total += bytes(s.send_keys, keys) + bytes(s.send_rows, row_list) + bytes(s.send_states, row_list) +
               bytes(s.send_states, state_list) + bytes(s.send_results, state_list) +
               bytes(s.send_gradients, gradients);
    return total;
  };
  RingBytes out;
  out.forward = of_slots(schedule.forward.at(std::size_t(rank)), rows, state);
  for (int chunk = 0; chunk < int(layout.chunks().size()); ++chunk) {
    out.keys = std::max(out.keys, Parcel::bytes(keys, layout, steps, {chunk, 0, schedule.groups}));
    out.gradients = std::max(out.gradients, Parcel::bytes(gradients, layout, steps, {chunk, 0, schedule.groups}));
  }
  if (!schedule.backward.empty())
    out.backward = of_slots(schedule.backward.at(std::size_t(rank)), back_rows, back_state);
  return out;
}

}  // namespace capstan::parallel
