#pragma once
// What every backend must do with messages, on the host and on a GPU: bodies of tests that run on all ranks of a communicator.

#include "parallel/communicator.h"

namespace capstan::tests {

/// Rank r sends 3·r numbers to everybody: uneven, and nothing at all from rank 0.
void exchanges_uneven_and_empty_messages(parallel::Communicator& ranks, kernels::Device device);
/// No rank calls the communicator again before its messages, far larger than any buffer underneath, have come and gone: a
/// backend that moved them only inside wait() would never get there.
void moves_messages_while_all_ranks_compute(parallel::Communicator& ranks, kernels::Device device);
/// Fifty messages between every two ranks, listed in opposite orders.
void keeps_many_tags_apart(parallel::Communicator& ranks, kernels::Device device);
/// Each message in an exchange of its own, sends and receives apart. Not for NCCL (communicator.h, rule 1).
void keeps_the_order_of_one_tag(parallel::Communicator& ranks, kernels::Device device);
/// For a message_split() of 1000 bytes.
void splits_large_messages(parallel::Communicator& ranks, kernels::Device device);
void gathers(parallel::Communicator& ranks, kernels::Device device);
void broadcasts_from_every_root(parallel::Communicator& ranks, kernels::Device device);
/// Messages of parts do not meet those of the whole, or of each other.
void keeps_parts_apart(parallel::Communicator& ranks, kernels::Device device);
/// Numbers go round the ring several times. Each round adds one to them before they go, and adds them up while they go, with
/// two buffers in turn and no other waits than wait(): on a GPU that is right only if each side comes after the other's use.
void goes_round_with_two_buffers(parallel::Communicator& ranks, kernels::Device device);

}  // namespace capstan::tests
