#include "framework/stop_request.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>

namespace capstan::framework {

namespace {

volatile std::sig_atomic_t signal_seen = 0;
std::atomic<int> requests = 0;  // that exist

extern "C" void remember_signal(int number) { signal_seen = number; }

enum Reason : std::int64_t { none = 0, time_over = 1, file_seen = 2, signalled = 3 };

}  // namespace

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

StopRequest::StopRequest(std::string run_folder, double max_seconds)
    : stop_file_(run_folder + "/stop"), max_seconds_(max_seconds), started_(monotonic_seconds()) {
  if (requests++ == 0) signal_seen = 0;
  struct sigaction action {};
  action.sa_handler = remember_signal;
  action.sa_flags = SA_RESTART;
  for (int number : {SIGTERM, SIGUSR1, SIGUSR2, SIGINT}) sigaction(number, &action, nullptr);
}

StopRequest::~StopRequest() { --requests; }

std::string StopRequest::reason(parallel::Communicator& world) {
  std::int64_t mine = none;
  if (max_seconds_ > 0 && monotonic_seconds() - started_ >= max_seconds_) mine = time_over;
  if (world.rank() == 0 && std::filesystem::exists(stop_file_)) mine = file_seen;
  if (signal_seen) mine = signalled;
  switch (world.all_reduce(mine, parallel::Reduce::max)) {
    case time_over: return fmt::format("train.max_time = {} s is over", max_seconds_);
    case file_seen: return fmt::format("{} exists", stop_file_);
    case signalled: return "a signal asked for it";
    default: return "";
  }
}

}  // namespace capstan::framework
