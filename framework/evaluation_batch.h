#pragma once
// What evaluations of token files share: one sequence, sharded over a ring.

#include <cstdint>
#include <vector>

#include "framework/model.h"
#include "framework/token_file.h"

namespace capstan::framework {

/// Tokens [begin, end) of the file. Error (bad_data): an id that the model does not know.
std::vector<std::int32_t> read_for_model(const TokenFile& data, const Model& model, std::int64_t begin,
                                         std::int64_t end);

/// This rank's shard of a whole sequence, its positions from 0. tokens, targets [S]; a target of -1 counts nothing.
/// declared_length: for scalings that depend on it; 0: S.
Batch evaluation_batch(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& targets,
                       const std::vector<std::int64_t>& index, std::int64_t declared_length, Device device);

}  // namespace capstan::framework
