#pragma once
// What --memory-report prints: where the memory of a run went.

#include <string>

#include "parallel/communicator.h"

namespace capstan::framework {

/// A table by purpose (kernels/memory.h), of the process that held most, and its resident memory. Called by all ranks; the
/// same text on all. Ranks that are threads share one process, and one account.
std::string memory_report_text(parallel::Communicator& world);

}  // namespace capstan::framework
