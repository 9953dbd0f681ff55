#include "tests/kernels/attention_shapes.h"

namespace capstan::tests {

using kernels::GateRule;
using kernels::Gates;

namespace {

GateRule tokens(double floor, std::int64_t block, std::int64_t window) { return {Gates::tokens, floor, block, window}; }
GateRule block_ends(double floor, std::int64_t block, std::int64_t window) {
  return {Gates::block_ends, floor, block, window};
}

}  // namespace

std::vector<NamedShape> all_term_shapes() {
  const std::int64_t T = 130;
  return {
      {"relative", {.tokens = T, .heads = 2, .relative = 20}},
      {"relative, R = 0", {.tokens = T, .heads = 2, .npos = 9, .relative = 1}},
      {"slopes", {.tokens = T, .heads = 2, .slope = true}},
      {"distance table", {.tokens = T, .heads = 2, .distances = 40}},
      {"slopes and distance table", {.tokens = T, .heads = 2, .distances = 90, .slope = true}},
      {"FIRE", {.tokens = T, .heads = 2, .fire = 8}},
      {"far positions", {.tokens = T, .heads = 2, .relative = 9, .distances = 5, .fire = 8, .far_positions = true}},
      {"forgetting", {.tokens = T, .heads = 2, .offset = true}},
      {"block offsets", {.tokens = T, .heads = 2, .offset = true, .offset_npos = 6}},
      {"offset table, P = 0", {.tokens = T, .heads = 2, .npos = 5, .offset = true, .offset_npos = 1}},
      {"H-C", {.tokens = T, .heads = 2, .npos = 7, .gates = {tokens(0, 16, 1)}, .offset = true, .offset_npos = 9}},
      {"floor", {.tokens = T, .heads = 2, .npos = 12, .gates = {tokens(0.1, 0, 0)}}},
      {"window 1 of blocks of 1", {.tokens = T, .heads = 2, .npos = 7, .gates = {tokens(0, 1, 1)}}},
      {"window 2 of blocks of 4", {.tokens = T, .heads = 2, .npos = 4, .gates = {tokens(0, 4, 2)}}},
      {"window 3 of blocks of 16, floor", {.tokens = T, .heads = 2, .npos = 17, .gates = {tokens(0.3, 16, 3)}}},
      {"ends of blocks of 1", {.tokens = T, .heads = 2, .npos = 9, .gates = {block_ends(0, 1, 1)}}},
      {"ends of blocks of 16", {.tokens = T, .heads = 2, .npos = 40, .gates = {block_ends(0.2, 16, 1)}}},
      {"H-B 16", {.tokens = T, .heads = 2, .npos = 30, .gates = {tokens(0, 16, 1), block_ends(0, 16, 1)}, .npos_1 = 3}},
      {"H-B 4", {.tokens = T, .heads = 2, .npos = 5, .gates = {tokens(0, 4, 2), block_ends(0.1, 4, 2)}, .npos_1 = 30}},
      {"H-B 1", {.tokens = T, .heads = 2, .npos = 5, .gates = {tokens(0, 1, 3), block_ends(0, 1, 3)}, .npos_1 = 8}},
      {"H-B 64",
       {.tokens = T,
        .heads = 2,
        .npos = 40,
        .gates = {tokens(0, 64, 2), block_ends(0, 64, 2)},
        .npos_1 = 2,
        .gate_q = {false, true}}},
      {"two sums of the same gates",
       {.tokens = T, .heads = 2, .npos = 6, .gates = {tokens(0, 0, 0), tokens(0.5, 16, 2)}, .npos_1 = 90}},
      {"second sum alone", {.tokens = T, .heads = 2, .gates = {GateRule{}, tokens(0, 0, 0)}, .npos_1 = 14}},
      {"separate gate keys", {.tokens = T, .heads = 2, .npos = 20, .gate_k = {true, false}}},
      {"separate gate queries", {.tokens = T, .heads = 2, .npos = 20, .gate_q = {true, false}}},
      {"separate gates",
       {.tokens = T,
        .heads = 2,
        .npos = 60,
        .gates = {tokens(0, 0, 0), tokens(0, 4, 3)},
        .npos_1 = 5,
        .gate_q = {true, true},
        .gate_k = {true, true}}},
      {"cope+relative", {.tokens = T, .heads = 2, .npos = 20, .relative = 16}},
      {"dropout", {.tokens = T, .heads = 2, .npos = 20, .dropout = 0.25}},
      {"all without order",
       {.tokens = T,
        .heads = 2,
        .z = true,
        .offset = true,
        .relative = 20,
        .distances = 40,
        .fire = 4,
        .slope = true,
        .dropout = 0.1}},
      {"everything",
       {.tokens = T,
        .heads = 2,
        .z = true,
        .npos = 30,
        .gates = {tokens(0.1, 16, 2), block_ends(0, 16, 2)},
        .npos_1 = 5,
        .gate_q = {true, false},
        .gate_k = {false, true},
        .offset = true,
        .offset_npos = 7,
        .relative = 20,
        .distances = 40,
        .fire = 4,
        .slope = true,
        .dropout = 0.1}},
  };
}

}  // namespace capstan::tests
