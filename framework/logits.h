#pragma once
// All logits of a text, for comparison with other programs.

#include <cstdint>
#include <vector>

#include "framework/model.h"

namespace capstan::framework {

/// logits [N, V] f32 on the host, row i after tokens ids[0 … i]; the same on every rank of the ring. Ids are checked against the
/// model's vocabulary (error: bad_data).
Tensor all_logits(Model& model, parallel::Communicator& ring, const std::vector<std::int32_t>& ids, std::int64_t tile);

}  // namespace capstan::framework
