// RandPE (Ruoss et al., arXiv 2305.16843): a sequence of S tokens gets S of the positions 0 … randomized_length - 1, drawn
// without replacement and sorted; each document takes the first of them. The draw is a pure function of the sequence's number,
// so that every rank makes the same. What the other parts do with the positions is theirs.

#include <algorithm>
#include <unordered_set>

#include "framework/encoding.h"
#include "framework/random.h"
#include "kernels/host_view.h"

namespace capstan::framework {

namespace {

/// `count` of 0 … from - 1, sorted (Floyd's sampling: one draw for each).
std::vector<std::int64_t> sorted_sample(std::uint64_t seed, std::int64_t count, std::int64_t from) {
  std::unordered_set<std::int64_t> chosen;
  for (std::int64_t last = from - count; last < from; ++last) {
    const std::int64_t drawn = random_below(seed, stream_of("randomized positions"), std::uint64_t(last), last + 1);
    chosen.insert(chosen.contains(drawn) ? last : drawn);
  }
  std::vector<std::int64_t> positions(chosen.begin(), chosen.end());
  std::sort(positions.begin(), positions.end());
  return positions;
}

class Randomized : public Encoding {
 public:
  explicit Randomized(const PositionConfig& position) : from_(position.randomized_length) {}

  Claims claims() const override { return {.positions = true}; }

  void place(const View& position, const std::vector<std::uint64_t>& draws, std::int64_t length) override {
    if (length > from_)
      fail(ExitCode::config,
           "a sequence of {} tokens needs as many positions, position.randomized_length = {} has fewer; raise it",
           length, from_);
    kernels::update_on_host(position, [&](const View& host) {
      for (std::int64_t b = 0; b < host.dim(0); ++b) {
        const std::vector<std::int64_t> drawn = sorted_sample(draws.empty() ? 0 : draws[std::size_t(b)], length, from_);
        const View row = host[b];
        for (std::int64_t t = 0; t < row.elements(); ++t)
          row.as<std::int64_t>()[t] = drawn[std::size_t(row.as<std::int64_t>()[t])];
      }
    });
  }

 private:
  std::int64_t from_;
};

}  // namespace

std::unique_ptr<Encoding> make_randomized(const PositionConfig& position, const EncodingShape&) {
  return std::make_unique<Randomized>(position);
}

}  // namespace capstan::framework
