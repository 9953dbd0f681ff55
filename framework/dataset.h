#pragma once
// Training sequences from token files. Everything is a pure function of (files, seed, sample number): which window a sample is,
// its order, its targets. No cursor is saved; the whole state is the number of sequences consumed.
//
// A file is one stream of its documents. Window w of a file: tokens [w S, (w + 1) S) as inputs, one further on as targets.
//   joined     no mask; positions run on; targets cross document starts
//   separate   a token sees its own document only; positions restart at a document's start (and at the window's); the last token
//              of a document has no target
// A target that the file's loss mask leaves out does not count either.
// Epoch e of a file visits its windows in a permutation of (seed, file, e). Several files: each run of samples (one sample, or
// those of a step) goes to the file that is furthest behind its weight.

#include <memory>
#include <string>
#include <vector>

#include "framework/config.h"
#include "framework/model.h"
#include "framework/token_file.h"
#include "parallel/sequence_layout.h"

namespace capstan::framework {

struct SampleId {
  int file = 0;
  std::int64_t window = 0;
  std::string text() const;  ///< "0:17"
};

/// A permutation of [0, size): Feistel network of Philox draws with cycle walking.
std::int64_t permuted(std::int64_t at, std::int64_t size, std::uint64_t seed, std::uint64_t stream);

class Dataset {
 public:
  /// run: samples in a row that come from one file. Errors: config (weights), bad_data (too few tokens: both numbers;
  /// vocabulary).
  Dataset(const std::vector<std::string>& paths, const std::vector<double>& weights, std::int64_t context, bool joined,
          std::int64_t seed, std::int64_t run = 1);

  std::int64_t vocabulary() const;
  std::int64_t tokens() const;   ///< of all files
  std::int64_t windows() const;  ///< of all files
  const std::vector<TokenFile>& files() const { return files_; }

  /// Sample number g of the run. Calls in rising order are cheap.
  SampleId sample(std::int64_t g);
  /// Window number w over all files, in file order (validation).
  SampleId window(std::int64_t w) const;
  /// Counted targets of a sample: N's summand, without reading its tokens.
  std::int64_t counted(const SampleId& id) const;
  /// The local shard of these samples as one micro-batch.
  Batch read(const std::vector<SampleId>& ids, const parallel::SequenceLayout& layout, int rank, Device device) const;

 private:
  std::int64_t windows_of(int file) const;

  std::vector<TokenFile> files_;
  std::vector<double> weights_;
  std::int64_t context_;
  bool joined_;
  std::uint64_t seed_;
  std::int64_t run_;
  std::int64_t next_ = 0;            // run that taken_ belongs to
  std::vector<std::int64_t> taken_;  // runs so far, per file
};

}  // namespace capstan::framework
