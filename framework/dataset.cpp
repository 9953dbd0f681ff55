#include "framework/dataset.h"

#include <algorithm>
#include <numeric>

#include "framework/random.h"
#include "kernels/host_view.h"

namespace capstan::framework {

namespace {

/// First document whose end lies beyond token t.
std::size_t document_of(const std::vector<std::int64_t>& offsets, std::int64_t t) {
  return std::size_t(std::upper_bound(offsets.begin(), offsets.end(), t) - offsets.begin()) - 1;
}

}  // namespace

std::string SampleId::text() const { return fmt::format("{}:{}", file, window); }

std::int64_t permuted(std::int64_t at, std::int64_t size, std::uint64_t seed, std::uint64_t stream) {
  int half_bits = 1;
  while ((std::int64_t(1) << (2 * half_bits)) < size) ++half_bits;
  const std::uint64_t mask = (std::uint64_t(1) << half_bits) - 1;
  std::uint64_t value = std::uint64_t(at);
  do {  // at most 4 walks on average: the domain is below 4 · size
    std::uint64_t left = value >> half_bits, right = value & mask;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::uint64_t mixed = left ^ (random_bits(seed, stream, right << 3 | round) & mask);
      left = right;
      right = mixed;
    }
    value = left << half_bits | right;
  } while (std::int64_t(value) >= size);
  return std::int64_t(value);
}

Dataset::Dataset(const std::vector<std::string>& paths, const std::vector<double>& weights, std::int64_t context,
                 bool joined, std::int64_t seed, std::int64_t run)
    : weights_(weights), context_(context), joined_(joined), seed_(std::uint64_t(seed)), run_(run),
      taken_(paths.size(), 0) {
  CAPSTAN_CHECK(!paths.empty() && (weights.empty() || weights.size() == paths.size()), "{} files, {} weights",
                paths.size(), weights.size());
  for (const std::string& path : paths) {
    files_.push_back(TokenFile::open(path));
    const std::int64_t tokens = files_.back().info().tokens;
    if (tokens < context + 1)
      fail(ExitCode::bad_data,
           "{}: holds {} tokens, a sequence of data.context {} needs {}: use more text or a shorter context", path,
           tokens, context, context + 1);
  }
  if (weights_.empty())
    for (const TokenFile& file : files_) weights_.push_back(double(file.info().tokens));
  const double sum = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  for (double& weight : weights_) weight /= sum;
}

std::int64_t Dataset::vocabulary() const {
  std::int64_t most = 0;
  for (const TokenFile& file : files_) most = std::max(most, file.info().vocabulary);
  return most;
}

std::int64_t Dataset::tokens() const {
  std::int64_t sum = 0;
  for (const TokenFile& file : files_) sum += file.info().tokens;
  return sum;
}

std::int64_t Dataset::windows_of(int file) const { return (files_[file].info().tokens - 1) / context_; }

std::int64_t Dataset::windows() const {
  std::int64_t sum = 0;
  for (std::size_t f = 0; f < files_.size(); ++f) sum += windows_of(int(f));
  return sum;
}

SampleId Dataset::sample(std::int64_t g) {
  const std::int64_t run = g / run_;
  if (run < next_) {
    next_ = 0;
    std::fill(taken_.begin(), taken_.end(), 0);
  }
  for (;; ++next_) {
    std::size_t furthest = 0;
    for (std::size_t f = 1; f < files_.size(); ++f) {
      const auto behind = [&](std::size_t i) { return weights_[i] * double(next_ + 1) - double(taken_[i]); };
      if (behind(f) > behind(furthest)) furthest = f;
    }
    if (next_ == run) {
      const std::int64_t at = taken_[furthest] * run_ + g % run_, size = windows_of(int(furthest)), epoch = at / size;
      const std::uint64_t stream = stream_of(fmt::format("order/{}/{}", furthest, epoch));
      return {int(furthest), permuted(at % size, size, seed_, stream)};
    }
    ++taken_[furthest];
  }
}

SampleId Dataset::window(std::int64_t w) const {
  int file = 0;
  while (w >= windows_of(file)) w -= windows_of(file++);
  return {file, w};
}

std::int64_t Dataset::counted(const SampleId& id) const {
  const TokenFile& file = files_[id.file];
  const std::int64_t begin = id.window * context_, end = begin + context_;
  // Targets are the tokens [begin + 1, end].
  std::vector<std::uint8_t> mask;
  if (file.info().loss_mask) mask = file.read_loss_mask(begin + 1, end + 1);
  std::int64_t counted = mask.empty() ? context_ : std::count(mask.begin(), mask.end(), 1);
  if (joined_) return counted;
  // A document that begins at t leaves the one before without a target for its last token.
  const std::vector<std::int64_t>& offsets = file.document_offsets();
  for (auto it = std::upper_bound(offsets.begin(), offsets.end(), begin); it != offsets.end() && *it <= end; ++it)
    counted -= mask.empty() || mask[std::size_t(*it - begin - 1)];
  return counted;
}

Batch Dataset::read(const std::vector<SampleId>& ids, const parallel::SequenceLayout& layout, int rank,
                    Device device) const {
  const std::int64_t batch = std::int64_t(ids.size()), local = layout.local_tokens(rank);
  Batch out;
  out.length = context_;
  const Shape shape{batch, local};
  const Device filled = kernels::filled_on(device);
  for (Tensor* ints : {&out.tokens, &out.targets}) *ints = Tensor(shape, DType::i32, filled);
  for (Tensor* longs : {&out.index, &out.position, &out.document}) *longs = Tensor(shape, DType::i64, filled);
  for (std::int64_t b = 0; b < batch; ++b) {
    const SampleId& id = ids[b];
    const std::vector<std::int64_t>& offsets = files_[id.file].document_offsets();
    const std::int64_t start = id.window * context_;
    std::int64_t at = b * local;
    for (int c : layout.owned(rank)) {
      const parallel::Chunk& chunk = layout.chunks()[c];
      if (chunk.tokens() == 0) continue;
      const std::vector<std::int32_t> tokens = files_[id.file].read(start + chunk.begin, start + chunk.end + 1);
      const std::vector<std::uint8_t> mask =
          files_[id.file].read_loss_mask(start + chunk.begin + 1, start + chunk.end + 1);
      std::size_t document = document_of(offsets, start + chunk.begin);
      for (std::int64_t i = 0; i < chunk.tokens(); ++i, ++at) {
        const std::int64_t t = start + chunk.begin + i;
        while (t >= offsets[document + 1]) ++document;
        const bool crosses = t + 1 >= offsets[document + 1];
        out.tokens.as<std::int32_t>()[at] = tokens[i];
        out.targets.as<std::int32_t>()[at] = (crosses && !joined_) || !mask[i] ? -1 : tokens[i + 1];
        out.index.as<std::int64_t>()[at] = chunk.begin + i;
        out.position.as<std::int64_t>()[at] = joined_ ? chunk.begin + i : t - std::max(start, offsets[document]);
        out.document.as<std::int64_t>()[at] = joined_ ? 0 : std::int64_t(document);
      }
    }
  }
  out.move_to(device);
  return out;
}

}  // namespace capstan::framework
