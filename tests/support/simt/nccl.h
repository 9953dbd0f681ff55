#pragma once
// How tests make the emulated NCCL fail.

#include <string>

namespace simt {

/// From now on NCCL knows of an asynchronous error of rank `rank` in every communicator, as after a lost link.
void fail_nccl(int rank, const std::string& text);
/// The end of that.
void forget_nccl_failures();
/// Communicators that were made, and neither destroyed nor aborted.
int nccl_communicators();

}  // namespace simt
