// Offsets around 2^31 and 2^32, where a 32-bit number would turn round: whatever computes one without touching memory.
// large_tensors_test.cpp has those that must touch it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "framework/model.h"
#include "framework/plan.h"
#include "parallel/parcel.h"
#include "parallel/ring_schedule.h"
#include "parallel/sequence_layout.h"

namespace capstan::tests {
namespace {

using kernels::Device;
using kernels::DType;
using kernels::Shape;
using kernels::View;
using parallel::Chunk;
using parallel::Field;
using parallel::Parcel;
using parallel::Per;
using parallel::SequenceLayout;

constexpr std::int64_t two31 = std::int64_t(1) << 31, two32 = std::int64_t(1) << 32;
constexpr std::int64_t edges[] = {two31 - 1, two31, two31 + 1, two32 - 1, two32, two32 + 1};
constexpr DType types[] = {DType::f64, DType::f32, DType::i64, DType::i32, DType::u8};

/// An address that nobody reads or writes; not null, of which no offset may be formed.
char* const nowhere = reinterpret_cast<char*>(std::uintptr_t(1) << 20);

View view_of(Shape shape, DType type) { return View(nowhere, type, Device::ref, shape); }

std::int64_t bytes_from_start(const View& part) {
  return std::int64_t(reinterpret_cast<std::uintptr_t>(part.data()) - reinterpret_cast<std::uintptr_t>(nowhere));
}

std::int64_t steps_of(std::int64_t tokens, std::int64_t step) { return (tokens + step - 1) / step; }

TEST(LargeOffsets, RowsOfAView) {
  for (const std::int64_t n : edges)
    for (const DType type : types) {
      SCOPED_TRACE(n);
      const std::int64_t size = kernels::size_of(type);
      const View flat = view_of({n}, type), tall = view_of({n, 3}, type), wide = view_of({3, n}, type),
                 deep = view_of({2, n, 2}, type);
      EXPECT_EQ(flat.elements(), n);
      EXPECT_EQ(flat.bytes(), n * size);
      EXPECT_EQ(deep.bytes(), 4 * n * size);
      EXPECT_EQ(bytes_from_start(flat.rows(n - 1, n)), (n - 1) * size);
      EXPECT_EQ(flat.rows(n - 1, n).elements(), 1);
      EXPECT_EQ(bytes_from_start(flat.rows(n, n)), n * size);
      EXPECT_EQ(flat.rows(1, n).elements(), n - 1);
      EXPECT_EQ(bytes_from_start(flat[n - 1]), (n - 1) * size);
      EXPECT_EQ(bytes_from_start(tall[n - 1]), 3 * (n - 1) * size);
      EXPECT_EQ(bytes_from_start(tall[n - 1].rows(2, 3)), (3 * n - 1) * size);
      EXPECT_EQ(bytes_from_start(wide[2]), 2 * n * size);
      EXPECT_EQ(bytes_from_start(wide[2].rows(n - 1, n)), (3 * n - 1) * size);
      EXPECT_EQ(bytes_from_start(deep[1][n - 1]), (4 * n - 2) * size);
    }
}

TEST(LargeOffsets, ReshapedViews) {
  for (const std::int64_t n : edges) {
    const View tall = view_of({n, 6}, DType::f32).reshape({n, 2, 3});
    EXPECT_EQ(tall.elements(), 6 * n);
    EXPECT_EQ(bytes_from_start(tall[n - 1][1]), (6 * n - 3) * 4);
    EXPECT_EQ(bytes_from_start(tall.reshape({3 * n, 2}).rows(3 * n - 1, 3 * n)), (6 * n - 2) * 4);
    EXPECT_THROW(tall.reshape({n, 2}), Error);
    EXPECT_THROW(tall.rows(0, n + 1), Error);
  }
}

/// A shape is refused where its elements, or eight bytes for each of them, do not fit in 63 bits.
TEST(LargeOffsets, ShapesThatDoNotFitAreRefused) {
  constexpr std::int64_t two28 = std::int64_t(1) << 28;
  EXPECT_EQ(Shape({two31, two28}).elements(), std::int64_t(1) << 59);
  EXPECT_EQ(Shape({two32 - 1, two28}).elements(), (two32 - 1) * two28);
  EXPECT_EQ(Shape({two31 + 1, two28 - 1}).elements(), (two31 + 1) * (two28 - 1));
  EXPECT_THROW(Shape({two32, two28}), Error);  // 2^60 elements: 2^63 bytes
  EXPECT_THROW(Shape({two31, two31}), Error);
  EXPECT_THROW(Shape({two31, two32}), Error);  // 2^63
  EXPECT_THROW(Shape({two31 + 1, two32 - 1}), Error);
  EXPECT_THROW(Shape({two32, two32}), Error);  // 2^64: 0 in 64 bits
  EXPECT_THROW(Shape({two32, two32, 2}), Error);
}

void expect_sound(const SequenceLayout& layout, std::int64_t length, std::int64_t unit) {
  std::int64_t next = 0, fewest = length, most = 0;
  for (const Chunk& chunk : layout.chunks()) {
    ASSERT_EQ(chunk.begin, next);
    ASSERT_GE(chunk.end, chunk.begin);
    ASSERT_TRUE(chunk.end % unit == 0 || chunk.end == length);
    fewest = std::min(fewest, chunk.steps(unit));
    most = std::max(most, chunk.steps(unit));
    next = chunk.end;
  }
  EXPECT_EQ(next, length);
  EXPECT_EQ(layout.length(), length);
  EXPECT_EQ(layout.largest_chunk(), std::min(length, most * unit));
}

/// Local rows, tiles and blocks of every chunk follow those of the rank's chunks before it.
void expect_local_offsets(const SequenceLayout& layout) {
  for (const std::int64_t step : {1, 64, 256})
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      std::int64_t offset = 0;
      for (const int chunk : layout.owned(rank)) {
        EXPECT_EQ(layout.local_offset(chunk, step), offset);
        offset += steps_of(layout.chunks()[chunk].tokens(), step);
      }
      EXPECT_EQ(layout.local_steps(rank, step), offset);
      EXPECT_TRUE(step > 1 || layout.local_tokens(rank) == offset);
    }
}

TEST(LargeOffsets, LayoutsOfLongSequences) {
  for (const std::int64_t length : edges)
    for (const int ranks : {1, 2, 3, 8})
      for (const std::int64_t unit : {1, 64, 256}) {
        SCOPED_TRACE(testing::Message() << length << " tokens, " << ranks << " ranks, unit " << unit);
        const SequenceLayout contiguous = SequenceLayout::contiguous(length, ranks, unit),
                             zigzag = SequenceLayout::zigzag(length, ranks, unit);
        for (const SequenceLayout& layout : {contiguous, zigzag}) {
          expect_sound(layout, length, unit);
          expect_local_offsets(layout);
          const std::int64_t units = steps_of(length, unit), parts = std::ssize(layout.chunks());
          EXPECT_EQ(layout.largest_chunk(), std::min(length, steps_of(units, parts) * unit));
        }
        const SequenceLayout pieces = SequenceLayout::in_pieces(zigzag, 2);
        EXPECT_EQ(pieces.length(), length);
        EXPECT_EQ(pieces.chunks().back().end, length);
        expect_local_offsets(pieces);
      }
}

TEST(LargeOffsets, RingsOfLongSequences) {
  for (const std::int64_t length : edges)
    for (const std::string& name : parallel::schedule_names()) {
      SCOPED_TRACE(testing::Message() << name << ", " << length);
      const parallel::RingPlan plan = parallel::plan_ring({name, 4, 0, 4, length, 256});
      std::int64_t sum = 0;
      for (int rank = 0; rank < 4; ++rank) sum += plan.layout.local_tokens(rank);
      EXPECT_EQ(sum, length);
    }
}

/// Two arrays per token and one per tile and block, of a rank that holds chunks 1 and 2 of 4.
struct Arrays {
  SequenceLayout layout;
  parallel::Steps steps{64, 256};
  parallel::Fields fields;
  explicit Arrays(std::int64_t length) : layout(SequenceLayout::zigzag(length, 2, 256)) {
    const std::int64_t tokens = layout.local_tokens(1), tiles = layout.local_steps(1, 64),
                       blocks = layout.local_steps(1, 256);
    fields = {{view_of({1, tokens, 2, 4}, DType::f32)},
              {view_of({1, tokens}, DType::i64), Per::token, false},
              {view_of({1, tiles, 2}, DType::i64), Per::tile},
              {view_of({1, blocks, 2, 4}, DType::f32), Per::block},
              {}};
  }
};

TEST(LargeOffsets, BytesOfAParcel) {
  for (const std::int64_t length : edges) {
    const Arrays a(length);
    for (const int chunk : {1, 2}) {
      SCOPED_TRACE(testing::Message() << length << ", chunk " << chunk);
      const std::int64_t n = a.layout.chunks()[chunk].tokens(), tiles = steps_of(n, 64), blocks = steps_of(n, 256);
      EXPECT_GT(n, std::int64_t(1) << 28);
      EXPECT_EQ(Parcel::bytes(a.fields, a.layout, a.steps, {chunk, 0, 1}), 32 * n + 8 * n + 16 * tiles + 32 * blocks);
      EXPECT_EQ(Parcel::bytes(a.fields, a.layout, a.steps, {chunk, 1, 2}), 16 * n + 8 * n + 8 * tiles + 16 * blocks);
    }
  }
}

TEST(LargeOffsets, WindowsOfAParcel) {
  for (const std::int64_t length : edges) {
    SCOPED_TRACE(length);
    const Arrays a(length);
    const std::int64_t first = a.layout.chunks()[1].tokens(), n = a.layout.chunks()[2].tokens();
    const Parcel parcel = Parcel::window(a.fields, a.layout, a.steps, {2, 0, 1});
    EXPECT_EQ(bytes_from_start(parcel.at(0, 0)), 32 * first);
    EXPECT_EQ(parcel.at(0, 0).bytes(), 32 * n);
    EXPECT_EQ(bytes_from_start(parcel.at(0, 0, n - 1, n)), 32 * (first + n - 1));
    EXPECT_EQ(bytes_from_start(parcel.at(1, 0, n - 1, n)), 8 * (first + n - 1));
    EXPECT_EQ(bytes_from_start(parcel.at(2, 0)), 16 * steps_of(first, 64));
    EXPECT_EQ(bytes_from_start(parcel.at(3, 0)), 32 * steps_of(first, 256));
    EXPECT_EQ(parcel.at(3, 0).dim(0), steps_of(n, 256));
    EXPECT_FALSE(parcel.at(4, 0));
  }
}

framework::Recipe recipe_of(const std::string& kind, std::int64_t context) {
  framework::Recipe r;
  r.model.vocabulary = 512;
  r.model.kv_heads = 4;
  r.position.kind = kind;
  r.data.context = context;
  framework::resolve_sizes(r.model, r.position);
  return r;
}

TEST(LargeOffsets, PlansOfLongContexts) {
  for (const std::string kind : {"rope+cope", "tape"})
    for (const std::int64_t context : edges)
      for (const int ranks : {1, 2, 8}) {
        SCOPED_TRACE(testing::Message() << kind << ", " << context << " tokens, " << ranks << " ranks");
        const framework::Recipe r = recipe_of(kind, context);
        const framework::Plan plan = framework::make_plan(r, ranks);
        EXPECT_EQ(std::accumulate(plan.local_tokens.begin(), plan.local_tokens.end(), std::int64_t(0)), context);
        EXPECT_EQ(plan.tokens_per_step, r.train.sequences * context);
        EXPECT_EQ(plan.total_tokens, r.train.sequences * context * r.train.steps);
        // As in plan_test: K, V (and z) of 4 heads of 8 in f32 and three 8-byte integers, of a chunk of whole tiles of
        // 64.
        const std::int64_t chunk = steps_of(steps_of(context, 64), 2 * ranks) * 64,
                           values = (kind == "tape" ? 3 : 2) * 4 * 8 * 4;
        EXPECT_EQ(plan.bytes_per_hop_forward, ranks == 1 ? 0 : chunk * (values + 24));
        EXPECT_EQ(plan.bytes_per_hop_backward, ranks == 1 ? 0 : chunk * (2 * values + 24));
        EXPECT_GT(plan.memory_total(), context / ranks * r.model.hidden_size * r.model.layers);
      }
}

TEST(LargeOffsets, MemoryOfAPlanGrowsWithTheContext) {
  for (const std::string kind : {"rope+cope", "tape"}) {
    const auto memory = [&](std::int64_t context) {
      return double(framework::make_plan(recipe_of(kind, context), 2).memory_total());
    };
    const double at31 = memory(two31), at32 = memory(two32);
    EXPECT_NEAR(at32 / at31, 2, 1e-3);
    EXPECT_NEAR(memory(two31 + 1) / at31, 1, 1e-6);
    EXPECT_NEAR(memory(two32 - 1) / at32, 1, 1e-6);
    EXPECT_NEAR(at31 / memory(two31 / 1024), 1024, 20);
  }
}

}  // namespace
}  // namespace capstan::tests
