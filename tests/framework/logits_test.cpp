#include "framework/logits.h"

#include <gtest/gtest.h>

#include "framework/generator.h"
#include "tests/framework/small_model.h"
#include "tests/framework/test_folder.h"
#include "tests/support/ranks.h"

namespace capstan::framework {
namespace {

std::vector<std::int32_t> some_ids(std::int64_t count) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < count; ++i) ids.push_back(std::int32_t((i * 7 + 3) % 37));
  return ids;
}

/// Row i is what generation sees after the first i + 1 tokens, on any ring.
TEST(Logits, AreThoseOfGenerationOnEveryRing) {
  const std::vector<std::int32_t> ids = some_ids(70);
  for (const std::string encoding : {"rope", "rope+cope", "tape"}) {
    const auto self = parallel::make_self_communicator();
    const auto alone = tests::small_model({encoding, DType::f64, Device::ref});
    const Tensor expected = all_logits(*alone, *self, ids, 16);
    const std::int64_t vocabulary = expected.shape()[1];
    for (const std::int64_t length : {1, 17, 70}) {
      Generator generator(*alone, *self, 16);
      const View last = generator.prefill({ids.begin(), ids.begin() + length}, 70);
      for (std::int64_t v = 0; v < vocabulary; ++v)
        EXPECT_NEAR(expected.as<float>()[(length - 1) * vocabulary + v], last.as<double>()[v], 1e-6);
    }
    tests::for_rank_counts({1, 2, 3, 4}, [&](parallel::Communicator& world) {
      const auto model = tests::small_model({encoding, DType::f64, Device::ref});
      const Tensor got = all_logits(*model, world, ids, 16);
      for (std::int64_t i = 0; i < 70 * vocabulary; ++i)
        ASSERT_NEAR(got.as<float>()[i], expected.as<float>()[i], 1e-6) << encoding << ", element " << i;
    });
  }
}

TEST(Logits, RefuseAnIdThatTheModelDoesNotKnow) {
  const auto self = parallel::make_self_communicator();
  const auto model = tests::small_model({"rope"});  // 37 ids
  capstan::testing::expect_parts(capstan::testing::error_of(ExitCode::bad_data,
                                                            [&] {
                                                              all_logits(*model, *self, {3, 37}, 64);
                                                            }),
                                 {"id 37", "0 to 36"});
}

}  // namespace
}  // namespace capstan::framework
