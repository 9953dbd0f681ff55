// Nothing reaches an earlier token or another document, in no encoding and under no schedule: what is changed there
// leaves every bit here. And a pack of documents gives what each gives alone.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/framework/runs.h"
#include "tests/support/conformance.h"

namespace capstan::tests {
namespace {

using kernels::Device;
using kernels::DType;

/// Where a case runs: in f64 on one rank, in f32 over ranks whose shards end elsewhere.
struct Place {
  Device device;
  int ranks;
  const char* schedule;
};
constexpr Place places[] = {{Device::ref, 1, "auto"},
                            {Device::cpu, 1, "auto"},
                            {Device::cpu, 3, "contiguous"},
                            {Device::cpu, 3, "ordered_pull"}};

ModelRun run_of(const EncodingCase& encoding, const Place& place) {
  ModelRun run;
  run.shape.kind = encoding.kind;
  encoding.set(run.shape.position);
  run.shape.device = place.device;
  run.shape.type = place.device == Device::ref ? DType::f64 : DType::f32;
  run.grid.schedule = place.schedule;
  return run;
}

/// Another token t, with another target.
ModelRun changed(ModelRun run, std::int64_t t) {
  const auto vocabulary = std::int32_t(run.shape.vocabulary);
  run.set_batch = [t, vocabulary](framework::Batch& batch) {
    const std::int64_t row = row_of_token(batch, t);
    if (row < 0) return;
    for (const kernels::Tensor* x : {&batch.tokens, &batch.targets}) {
      std::int32_t& id = x->as<std::int32_t>()[row];
      id = (id + 5) % vocabulary;
    }
  };
  return run;
}

/// Rows of `columns` numbers of the tokens [begin, end).
Numbers rows_of(const Numbers& x, std::int64_t tokens, std::int64_t begin, std::int64_t end) {
  const std::ptrdiff_t columns = std::ssize(x) / tokens;
  return {x.begin() + begin * columns, x.begin() + end * columns};
}

class Leak : public testing::TestWithParam<Place> {};

/// Causality, of losses and of TAPE's states; the last token of a chunk is among those changed, and the first of one.
TEST_P(Leak, NoTokenSeesALaterOne) {
  for (const EncodingCase& encoding : encoding_cases()) {
    ModelRun run = run_of(encoding, GetParam());
    run.backward = false;
    const ModelResult before = run_model(GetParam().ranks, run);
    for (const std::int64_t t : {7, 16, 30, 44}) {
      SCOPED_TRACE(fmt::format("{}: token {}", encoding.name, t));
      const ModelResult after = run_model(GetParam().ranks, changed(run, t));
      const auto early = [&](const Numbers& x) { return rows_of(x, run.length, 0, t); };
      const auto late = [&](const Numbers& x) {
        return rows_of(x, run.length, std::min(t + 1, run.length - 1), run.length);
      };
      EXPECT_EQ(early(after.nll), early(before.nll));
      EXPECT_NE(late(after.nll), late(before.nll)) << "nobody sees it at all";
      for (std::size_t layer = 0; layer < before.states.size(); ++layer)
        EXPECT_EQ(early(after.states[layer]), early(before.states[layer])) << "states of layer " << layer;
    }
  }
}

/// Losses and gradients of all other documents, whichever document is changed: these are forward's and backward's
/// leaks.
TEST_P(Leak, NoDocumentSeesAnother) {
  const std::vector<std::int64_t> edges{0, 13, 18, 31,
                                        45};  // 5 tokens lie in one block of hierarchical CoPE, or across two
  for (const EncodingCase& encoding : encoding_cases()) {
    ModelRun run = run_of(encoding, GetParam());
    run.documents = {13, 5, 13};
    const ModelResult before = run_model(GetParam().ranks, run);
    for (std::size_t d = 0; d + 1 < edges.size(); ++d) {
      SCOPED_TRACE(fmt::format("{}: document {}", encoding.name, d));
      const ModelResult after = run_model(GetParam().ranks, changed(run, edges[d] + 3));
      for (std::size_t other = 0; other + 1 < edges.size(); ++other) {
        const auto of = [&](const Numbers& x) { return rows_of(x, run.length, edges[other], edges[other + 1]); };
        if (other == d) {
          EXPECT_NE(of(after.input_gradient), of(before.input_gradient));
          continue;
        }
        EXPECT_EQ(of(after.nll), of(before.nll)) << "document " << other;
        EXPECT_EQ(of(after.input_gradient), of(before.input_gradient)) << "document " << other;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Places, Leak, testing::ValuesIn(places), [](const auto& place) {
  return fmt::format("{}_{}_{}", name_of(place.param.device), place.param.ranks, place.param.schedule);
});

/// The documents of a pack, each as a sequence of its own; what else depends on the whole sequence's length, dynamic
/// scaling's frequencies and RandPE's draw, keeps it.
ModelResult separate_runs(const ModelRun& packed, const std::vector<std::int64_t>& edges) {
  ModelResult all;
  for (std::size_t d = 0; d + 1 < edges.size(); ++d) {
    ModelRun one = packed;
    one.documents = {};
    one.length = edges[d + 1] - edges[d];
    one.grid = {};
    const framework::Batch whole =
        tiny_batch(parallel::SequenceLayout::contiguous(packed.length, 1, 1), 0, packed.shape, 1);
    one.set_batch = [&](framework::Batch& batch) {
      batch.length = packed.length;
      for (const auto& [to, from] : {std::pair{&batch.tokens, &whole.tokens}, {&batch.targets, &whole.targets}})
        to->view().copy_from(from->view().reshape({packed.length}).rows(edges[d], edges[d + 1]));
    };
    const ModelResult result = run_model(1, one);
    all.nll.insert(all.nll.end(), result.nll.begin(), result.nll.end());
    all.input_gradient.insert(all.input_gradient.end(), result.input_gradient.begin(), result.input_gradient.end());
    for (const auto& [name, gradient] : result.gradients) {
      Numbers& sum = all.gradients[name];
      sum.resize(gradient.size());
      for (std::size_t at = 0; at < gradient.size(); ++at) sum[at] += gradient[at];
    }
  }
  return all;
}

/// Hierarchical CoPE counts whole blocks of the pack, so its documents begin at multiples of the block there. 1e-12:
/// rounding of sums in f64; of gradients, where such sums cancel, ten times that.
TEST(Pack, EqualsSeparateRuns) {
  for (const EncodingCase& encoding : encoding_cases()) {
    const bool blocks = encoding.kind.find("hierarchical") != std::string::npos;
    ModelRun packed = run_of(encoding, places[0]);
    packed.documents = blocks ? std::vector<std::int64_t>{8, 4, 12} : std::vector<std::int64_t>{7, 3, 1};
    std::vector<std::int64_t> edges{0};
    for (const std::int64_t length : packed.documents) edges.push_back(edges.back() + length);
    edges.push_back(packed.length);
    const ModelResult expected = separate_runs(packed, edges);
    for (const int ranks : {1, 3}) {
      SCOPED_TRACE(fmt::format("{} over {} ranks", encoding.name, ranks));
      const ModelResult got = run_model(ranks, packed);
      EXPECT_LE(relative_difference(got.nll, expected.nll), 1e-12);
      EXPECT_LE(relative_difference(got.input_gradient, expected.input_gradient), 1e-11);
      const NamedDifference worst = worst_difference(got.gradients, expected.gradients);
      EXPECT_LE(worst.difference, 1e-11) << worst.name;
    }
  }
}

/// At other places the blocks are others, cut at the documents' starts.
TEST(Pack, OfHierarchicalCopeDependsOnWhereDocumentsBegin) {
  ModelRun packed;
  packed.shape.kind = "hierarchical_cope";
  packed.documents = {7, 3, 1};
  EXPECT_GT(relative_difference(run_model(1, packed).nll, separate_runs(packed, {0, 7, 10, 11, 45}).nll), 1e-4);
}

}  // namespace
}  // namespace capstan::tests
