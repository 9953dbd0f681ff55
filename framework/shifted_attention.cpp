#include "framework/shifted_attention.h"

#include "kernels/elementwise.h"
#include "kernels/host_view.h"

namespace capstan::framework {

using kernels::DType;
using kernels::Fill;
using kernels::HostView;
using kernels::Tensor;
using kernels::View;
using parallel::RingGradients;
using parallel::RingInputs;
using parallel::RingSaved;

namespace {

/// [B, T, heads, …] as rows of all heads' columns.
View as_rows(const View& x) {
  return x.reshape({x.dim(0) * x.dim(1), x.dim(2) * (x.shape().rank() > 3 ? x.dim(3) : 1)});
}

/// [B, T, heads / 2, …] like x.
Tensor half_like(const View& x) {
  if (x.shape().rank() == 3) return Tensor({x.dim(0), x.dim(1), x.dim(2) / 2}, x.type(), x.device(), Fill::none);
  return Tensor({x.dim(0), x.dim(1), x.dim(2) / 2, x.dim(3)}, x.type(), x.device(), Fill::none);
}

Tensor take_half(const View& x, int half) {
  Tensor part = half_like(x);
  const View rows = as_rows(part);
  kernels::take_columns(rows, as_rows(x), half * rows.dim(1));
  return part;
}

void put_half(const View& x, const Tensor& part, int half) {
  const View rows = as_rows(part);
  kernels::put_columns(as_rows(x), rows, half * rows.dim(1));
}

/// One half's q, k and v, and the call with them.
struct HalfInputs {
  Tensor q, k, v;
  RingInputs in;
  kernels::AttentionSettings settings;

  HalfInputs(const RingInputs& all, const kernels::AttentionSettings& of_all, const View& segments, int half)
      : q(take_half(all.q, half)), k(take_half(all.k, half)), v(take_half(all.v, half)), in(all), settings(of_all) {
    in.q = q;
    in.k = k;
    in.v = v;
    in.rows.document = segments;
    settings.dropout.first_head += half * q.shape()[2];
  }
};

void check(const RingInputs& in, const kernels::AttentionSettings& settings) {
  const bool plain = !in.z && !in.terms.table[0] && !in.terms.table[1] && !in.terms.offset_source &&
                     !in.terms.relative && !settings.shared.slope && !settings.shared.distance_table &&
                     !settings.shared.fire.in;
  CAPSTAN_CHECK(plain && in.q.dim(2) % 2 == 0 && in.k.dim(2) % 2 == 0,
                "shifted attention of {} heads and {} kv heads, or with score terms", in.q.dim(2), in.k.dim(2));
}

}  // namespace

ShiftedSegments shifted_segments(const parallel::TokenRows& rows, std::int64_t length, std::int64_t groups) {
  const std::int64_t group = (length + groups - 1) / groups, runs = groups + 1;
  const HostView index(rows.index), document(rows.document);
  ShiftedSegments made;
  for (int half = 0; half < 2; ++half) {
    Tensor segments(rows.index.shape(), DType::i64, kernels::filled_on(rows.index.device()), Fill::none);
    for (std::int64_t n = 0; n < rows.index.elements(); ++n)
      segments.as<std::int64_t>()[n] =
          document.as<std::int64_t>()[n] * runs + (index.as<std::int64_t>()[n] + half * (group / 2)) / group;
    made[std::size_t(half)] = kernels::moved_to(std::move(segments), rows.index.device());
  }
  return made;
}

RingSaved shifted_attention_forward(const parallel::Ring& ring, const ShiftedSegments& segments, const RingInputs& in,
                                    const kernels::AttentionSettings& settings, kernels::AttentionStats* stats) {
  check(in, settings);
  const DType sums = kernels::wide(in.q.type());
  RingSaved saved;
  saved.o = Tensor(in.q.shape(), sums, in.q.device(), Fill::none);
  saved.lse = Tensor({in.q.dim(0), in.q.dim(1), in.q.dim(2)}, sums, in.q.device(), Fill::none);
  for (int half = 0; half < 2; ++half) {
    const HalfInputs own(in, settings, segments[std::size_t(half)], half);
    const RingSaved made = ring_attention_forward(ring, own.in, own.settings, stats);
    put_half(saved.o, made.o, half);
    put_half(saved.lse, made.lse, half);
  }
  return saved;
}

/// The halves share nothing, so each goes its way back alone.
void shifted_attention_backward(const parallel::Ring& ring, const ShiftedSegments& segments, const RingGradients& out,
                                const RingInputs& in, const RingSaved& saved, const View& d_o,
                                const kernels::AttentionSettings& settings) {
  for (int half = 0; half < 2; ++half) {
    const HalfInputs own(in, settings, segments[std::size_t(half)], half);
    RingSaved made;
    made.o = take_half(saved.o, half);
    made.lse = take_half(saved.lse, half);
    const Tensor dq = half_like(out.dq), dk = half_like(out.dk), dv = half_like(out.dv);
    RingGradients part;
    part.dq = dq;
    part.dk = dk;
    part.dv = dv;
    ring_attention_backward(ring, part, own.in, made, take_half(d_o, half), own.settings);
    put_half(out.dq, dq, half);
    put_half(out.dk, dk, half);
    put_half(out.dv, dv, half);
  }
}

}  // namespace capstan::framework
