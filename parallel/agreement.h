#pragma once
// Before a run starts, its ranks make sure that they are about to run the same thing: the same binary, recipe and data.
// On many machines they easily are not, and the loss would not show it.

#include <string>
#include <utility>
#include <vector>

#include "parallel/communicator.h"

namespace capstan::parallel {

/// Name and value: {"binary", build id}, {"data file a.h5", checksum}.
using Facts = std::vector<std::pair<std::string, std::string>>;

/// Called by all ranks. If any rank's facts differ from rank 0's, every rank throws the same Error(config): the fact,
/// both ranks with their hosts, both values.
void require_agreement(Communicator& world, const Facts& facts);

}  // namespace capstan::parallel
