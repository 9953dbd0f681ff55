#include "parallel/decode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace capstan::parallel {
namespace {

using kernels::Device;
using kernels::DType;
using kernels::Shape;
using tests::random_tensor;

constexpr std::int64_t heads = 4, groups = 2, depth = 6, rows_of_table = 9;

std::vector<std::int64_t> edges_of(const GrowingLayout& layout) {
  std::vector<std::int64_t> edges;
  for (const Chunk& chunk : layout.chunks()) edges.push_back(chunk.begin);
  edges.push_back(layout.length());
  return edges;
}

std::vector<int> owners_of(const GrowingLayout& layout) {
  std::vector<int> owners;
  for (const Chunk& chunk : layout.chunks()) owners.push_back(chunk.owner);
  return owners;
}

GrowingLayout grown(std::int64_t prompt, int ranks, std::int64_t unit, std::int64_t added) {
  GrowingLayout layout(SequenceLayout::contiguous(prompt, ranks, unit));
  for (std::int64_t i = 0; i < added; ++i) layout.append();
  return layout;
}

TEST(GrowingLayout, NewTokensFillTheLastShortChunkOnItsOwner) {
  const GrowingLayout layout = grown(130, 2, 64, 62);
  EXPECT_EQ(edges_of(layout), (std::vector<std::int64_t>{0, 128, 192}));
  EXPECT_EQ(owners_of(layout), (std::vector<int>{0, 1}));
}

TEST(GrowingLayout, FurtherChunksGoToTheRanksInTurn) {
  const GrowingLayout layout = grown(130, 3, 64, 62 + 256 + 256 + 1);
  EXPECT_EQ(edges_of(layout), (std::vector<std::int64_t>{0, 64, 128, 192, 448, 704, 705}));
  EXPECT_EQ(owners_of(layout), (std::vector<int>{0, 1, 2, 0, 1, 2}));
}

TEST(GrowingLayout, FullPromptBeginsAChunkOnTheNextRank) {
  const GrowingLayout layout = grown(64, 4, 64, 1);
  EXPECT_EQ(edges_of(layout), (std::vector<std::int64_t>{0, 64, 65}));
  EXPECT_EQ(owners_of(layout), (std::vector<int>{0, 1}));
}

TEST(GrowingLayout, ChunksAreRoundedUpToTheUnit) {
  const GrowingLayout layout = grown(1, 2, 48, 47 + 288 + 1);
  EXPECT_EQ(edges_of(layout), (std::vector<std::int64_t>{0, 48, 336, 337}));
}

/// One sequence, made whole on every rank, so that each may cut out its shard.
struct Problem {
  Tensor q, k, v, z, table, index, position, document;

  Problem(std::int64_t tokens, bool with_z, bool with_table, DType type, Device device, double key_scale,
          double query_scale) {
    q = random_tensor({1, tokens, heads, depth}, type, device, 1, query_scale);
    k = random_tensor({1, tokens, groups, depth}, type, device, 2, key_scale);
    v = random_tensor({1, tokens, groups, depth}, type, device, 3);
    if (with_z) z = random_tensor({1, tokens, groups, depth}, type, device, 4);
    if (with_table) table = random_tensor({1, tokens, heads, rows_of_table}, type, device, 5);
    for (Tensor* x : {&index, &position, &document}) *x = Tensor({1, tokens}, DType::i64, device);
    for (std::int64_t t = 0; t < tokens; ++t) index.as<std::int64_t>()[t] = position.as<std::int64_t>()[t] = t;
  }

  static View part(const Tensor& x, std::int64_t begin, std::int64_t end) {
    if (!x) return {};
    const View rows = x.view()[0].rows(begin, end);
    return rows.shape().rank() == 1 ? rows.reshape({1, end - begin})
                                    : rows.reshape({1, end - begin, rows.dim(1), rows.dim(2)});
  }
  RingInputs rows(std::int64_t begin, std::int64_t end) const {
    RingInputs in;
    in.q = part(q, begin, end);
    in.k = part(k, begin, end);
    in.v = part(v, begin, end);
    in.z = part(z, begin, end);
    in.terms.table[0] = part(table, begin, end);
    in.rows = {part(index, begin, end), part(position, begin, end), part(document, begin, end)};
    return in;
  }
};

/// The row `at` over all keys up to it in one chunk: what decode must give.
RingSaved whole(const Problem& p, std::int64_t at, const AttentionSettings& settings) {
  const RingInputs row = p.rows(at, at + 1), keys = p.rows(0, at + 1);
  const std::int64_t columns = p.z ? 2 * depth : depth;
  const DType type = p.q.view().type();
  const Device device = p.q.view().device();
  RingSaved saved;
  saved.o = Tensor({1, 1, heads, columns}, type, device);
  saved.lse = Tensor({1, 1, heads}, type, device);
  const Tensor l = zeros_like(saved.lse);
  Tensor carry, horizon;
  kernels::AttentionState state{saved.o.view()[0], saved.lse.view()[0], l.view()[0], {}, {}};
  kernels::QueryChunk query{row.q[0], row.rows.index[0], row.rows.position[0], row.rows.document[0], {}};
  if (p.table) {
    for (Tensor* x : {&carry, &horizon}) *x = Tensor({1, heads}, DType::i64, device);
    state.carry[0] = carry;
    state.horizon[0] = horizon;
    query.terms.table[0] = row.terms.table[0][0];
  }
  attention_begin(state);
  attention_forward(state, query,
                    {keys.k[0],
                     keys.v[0],
                     keys.z ? keys.z[0] : View(),
                     keys.rows.index[0],
                     keys.rows.position[0],
                     keys.rows.document[0],
                     {}},
                    settings, nullptr);
  attention_finish(state);
  return saved;
}

struct Case {
  const char* name;
  bool with_z, with_table;
  double key_scale, query_scale;
};
const Case cases[] = {
    {"plain", false, false, 1, 1},
    {"states", true, false, 1, 1},
    {"cope", false, true, 1, 1},  // saturated after some 16 keys
    {"cope, gates of a half", false, true, 0, 1},
    {"cope, large gates", false, true, 3, 3},
    {"cope, table by far keys", true, true, 0.3, 0.1},
};

/// Decodes every token after the prompt; `look(token, result)` sees some of them, among these the ones at chunk
/// borders.
void decode_all(Communicator& ring, const Problem& p, std::int64_t prompt, std::int64_t total,
                const AttentionSettings& settings, const std::function<void(std::int64_t, const RingSaved&)>& look) {
  const auto layout = SequenceLayout::contiguous(prompt, ring.size(), settings.tile);
  GrowingLayout growing(layout);
  const Chunk& own = layout.chunks()[ring.rank()];
  KeyCache cache;
  cache.append(p.rows(own.begin, own.end));
  for (std::int64_t at = prompt; at < total; ++at) {
    growing.append();
    if (growing.chunks().back().owner == ring.rank()) cache.append(p.rows(at, at + 1));
    const bool border = growing.chunks().back().tokens() <= 1 || growing.length() == growing.limit();
    if (!border && at >= prompt + 3 && at % 61 != 0 && at + 2 < total) continue;
    const RingSaved got = decode_attention(ring, growing, cache, p.rows(at, at + 1), settings, nullptr);
    look(at, got);
    const Tensor first = got.o.clone();  // the same bits on every rank
    ring.broadcast(first, 0);
    ASSERT_TRUE(tests::same_bits(first, got.o)) << "token " << at;
  }
}

AttentionSettings settings_of(const Case& c, std::int64_t tile) {
  AttentionSettings settings;
  settings.tile = tile;
  if (c.with_table) settings.gates[0].gates = kernels::Gates::tokens;
  return settings;
}

/// Against one chunk on one device, in double.
void compare(Communicator& ring, const Case& c, std::int64_t prompt, std::int64_t tile, std::int64_t total) {
  SCOPED_TRACE(fmt::format("{}, prompt {}, tile {}", c.name, prompt, tile));
  const Problem p(total, c.with_z, c.with_table, DType::f64, Device::ref, c.key_scale, c.query_scale);
  decode_all(ring, p, prompt, total, settings_of(c, tile), [&](std::int64_t at, const RingSaved& got) {
    const RingSaved expected = whole(p, at, settings_of(c, tile));
    ASSERT_LE(tests::relative_error(got.o, expected.o), 1e-12) << "token " << at;
    ASSERT_LE(tests::relative_error(got.lse, expected.lse), 1e-12) << "token " << at;
    if (ring.size() == 1 && at < tile) {
      ASSERT_TRUE(tests::same_bits(got.o, expected.o)) << "one rank, one chunk: token " << at;
    }
  });
}

TEST(Decode, EqualsOneChunkInDouble) {
  tests::for_rank_counts({1, 2, 3, 4}, [](Communicator& ring) {
    for (const Case& c : cases)
      for (const std::int64_t prompt : {1, 5, 63, 64, 65, 130})
        for (const std::int64_t tile : {16, 64}) compare(ring, c, prompt, tile, prompt + 350);
  });
}

TEST(Decode, ChunksPastTheFirstRoundOfRanks) {
  tests::for_rank_counts({1, 2, 3}, [](Communicator& ring) {
    for (const Case& c : cases) compare(ring, c, 70, 64, 1500);
  });
}

TEST(DecodeCovering, FastDeviceErrsAtMostTwiceAsMuchAsTheNaiveOne) {
  tests::for_rank_counts({1, 2, 3, 4}, [](Communicator& ring) {
    for (const Case& c : cases)
      for (const std::int64_t prompt : {1, 65, 130}) {
        SCOPED_TRACE(fmt::format("{}, prompt {}", c.name, prompt));
        const std::int64_t total = prompt + 350;
        const auto problem = [&](DType type, Device device) {
          return Problem(total, c.with_z, c.with_table, type, device, c.key_scale, c.query_scale);
        };
        const Problem fast = problem(DType::f32, Device::cpu), naive = problem(DType::f32, Device::ref),
                      exact = problem(DType::f64, Device::ref);
        std::vector<double> got_o, naive_o, exact_o;
        const auto collect = [](std::vector<double>& all, const Tensor& o) {
          for (const double value : tests::values_of(o)) all.push_back(value);
        };
        decode_all(ring, fast, prompt, total, settings_of(c, 64), [&](std::int64_t at, const RingSaved& got) {
          collect(got_o, got.o);
          collect(naive_o, whole(naive, at, settings_of(c, 64)).o);
          collect(exact_o, whole(exact, at, settings_of(c, 64)).o);
        });
        const auto tensor = [&](const std::vector<double>& values) {
          return tests::tensor_of({std::ssize(values)}, DType::f64, Device::ref, values);
        };
        EXPECT_LE(tests::relative_error(tensor(got_o), tensor(exact_o)),
                  tests::f32_bound(tensor(naive_o), tensor(exact_o)));
      }
  });
}

TEST(Decode, ZeroGatesLeaveTheTablesFirstRow) {
  // Gates σ(-60) ≈ 1e-26 round to nothing: every key is at position 0, so the bias is a row constant and falls out.
  tests::for_rank_counts({1, 2, 3}, [](Communicator& ring) {
    const std::int64_t total = 400, prompt = 130;
    Problem with(total, false, true, DType::f64, Device::ref, 1, 1);
    for (Tensor* x : {&with.k, &with.q})
      for (std::int64_t i = 0; i < x->view().elements(); ++i)
        x->as<double>()[i] = i % depth ? 0.0 : (x == &with.q ? 60 * std::sqrt(double(depth)) : -1.0);
    Problem without = Problem(total, false, false, DType::f64, Device::ref, 1, 1);
    without.q.view().copy_from(with.q);
    without.k.view().copy_from(with.k);
    const auto layout = SequenceLayout::contiguous(prompt, ring.size(), 64);
    GrowingLayout growing(layout);
    const Chunk& own = layout.chunks()[ring.rank()];
    KeyCache cache;
    cache.append(with.rows(own.begin, own.end));
    for (std::int64_t at = prompt; at < total; ++at) {
      growing.append();
      if (growing.chunks().back().owner == ring.rank()) cache.append(with.rows(at, at + 1));
    }
    const RingSaved got = decode_attention(ring, growing, cache, with.rows(total - 1, total),
                                           settings_of({"", false, true, 1, 1}, 64), nullptr);
    EXPECT_LE(tests::relative_error(got.o, whole(without, total - 1, settings_of({"", false, false, 1, 1}, 64)).o),
              1e-12);
  });
}

TEST(FoldStates, EmptyPartsChangeNoBit) {
  const std::int64_t columns = depth, size = heads * (columns + 2);
  const Tensor states = random_tensor({3, size}, DType::f64, Device::ref, 7);
  for (std::int64_t part : {0, 2})
    for (std::int64_t h = 0; h < heads; ++h) {
      const bool empty = part == 2;
      for (std::int64_t e = 0; empty && e < columns; ++e) states.as<double>()[part * size + h * columns + e] = 0;
      states.as<double>()[part * size + heads * columns + h] = empty ? -1e30 : double(h);
      states.as<double>()[part * size + heads * (columns + 1) + h] = empty ? 0 : 2 + double(h);
    }
  const Tensor one({heads, columns}, DType::f64, Device::ref), two = zeros_like(one);
  const Tensor lse_one({heads}, DType::f64, Device::ref), lse_two = zeros_like(lse_one);
  fold_states(one, lse_one, states, {0});
  fold_states(two, lse_two, states, {0, 2});
  EXPECT_TRUE(tests::same_bits(one, two));
  EXPECT_TRUE(tests::same_bits(lse_one, lse_two));
}

}  // namespace
}  // namespace capstan::parallel
