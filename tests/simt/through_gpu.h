#pragma once
// Messages of the host that take the way of a GPU's: so that programs of the host try the rules of device messages.

#include <memory>
#include <vector>

#include "parallel/communicator.h"

namespace capstan::tests {

/// A communicator over `gpu`, which takes the messages' bytes from one emulated GPU to another. The host waits for them in wait().
std::unique_ptr<parallel::Communicator> through_gpu(parallel::Communicator& gpu);

}  // namespace capstan::tests
