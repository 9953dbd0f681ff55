// The attention tile of `cpu`: picks how a call is computed.

#include <algorithm>

#include "kernels/amx.h"
#include "kernels/attention_bf16_cpu.h"
#include "kernels/attention_devices.h"
#include "kernels/attention_f32_cpu.h"
#include "kernels/attention_walk_cpu.h"
#include "kernels/isa.h"

namespace capstan::kernels::cpu {
namespace {

/// In bf16 on the tile unit, where there is one; z stays f32, and the products with it. Else in f32 on the widest registers.
bool on_tile_unit(Isa isa, const QueryChunk& queries, const KeyChunk& keys) {
  return queries.q.type() == DType::bf16 && !keys.z && isa == Isa::avx512 && has_amx();
}

/// A chunk of few rows (small tiles, a generated token) gets 16 lanes, else 64.
int lanes_for(Isa isa, const QueryChunk& queries, const AttentionSettings& settings) {
  return isa != Isa::portable && std::min(settings.tile, queries.q.dim(0)) <= 16 ? 16 : 64;
}

/// Calls f(call, with_products).
template <class F>
void with_call(const QueryChunk& queries, const KeyChunk& keys, const AttentionSettings& settings, const F& f) {
  const Isa isa = best_isa();
  const bool tiles = on_tile_unit(isa, queries, keys);
  const Call call(queries, keys, settings, lanes_for(isa, queries, settings), tiles ? tile_depth : padded);
  const bool few = call.lane_count == 16;
  if (tiles)
    return f(call, [few](const auto& body) {
      if (few) run_avx512([&]() __attribute__((always_inline)) { body(Bf16Products<AmxTiles, 16, 16>{}); });
      else run_avx512([&]() __attribute__((always_inline)) { body(Bf16Products<AmxTiles, 64, 16>{}); });
    });
  f(call, [few, isa](const auto& body) {
    if (isa == Isa::portable) run_portable([&]() __attribute__((always_inline)) { body(F32Products<64, 4>{}); });
    else if (isa == Isa::avx2 && few) run_avx2([&]() __attribute__((always_inline)) { body(F32Products<16, 8>{}); });
    else if (isa == Isa::avx2) run_avx2([&]() __attribute__((always_inline)) { body(F32Products<64, 8>{}); });
    else if (few) run_avx512([&]() __attribute__((always_inline)) { body(F32Products<16, 16>{}); });
    else run_avx512([&]() __attribute__((always_inline)) { body(F32Products<64, 16>{}); });
  });
}

}  // namespace

void attention_forward(const AttentionState& state, const QueryChunk& queries, const KeyChunk& keys,
                       const AttentionSettings& settings, AttentionStats& stats) {
  with_call(queries, keys, settings,
            [&](const Call& call, const auto& with_products) { forward_pieces(call, with_products, state, stats); });
}

void attention_backward(const AttentionGradients& out, const AttentionBackwardState& state, const QueryChunk& queries,
                        const KeyChunk& keys, const View& d_o, const AttentionSaved& saved,
                        const AttentionSettings& settings) {
  const BackwardArrays arrays{out, state, d_o, saved};
  with_call(queries, keys, settings,
            [&](const Call& call, const auto& with_products) { backward_pieces(call, with_products, arrays); });
}

void attention_gate_sum(const View& sum, int which, const QueryChunk& queries, const KeyChunk& keys,
                        const AttentionSettings& settings) {
  with_call(queries, keys, settings,
            [&](const Call& call, const auto& with_products) { gate_sum_pieces(call, with_products, sum, which); });
}

}  // namespace capstan::kernels::cpu
