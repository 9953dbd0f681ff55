#include "parallel/failure.h"

#include <unistd.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "parallel/communicator.h"

namespace capstan::parallel {

namespace {

std::atomic<double> deadline_seconds{600.0};
std::atomic<std::int64_t> split_bytes{std::int64_t(1) << 30};

/// The variable as a number; `otherwise` if it is unset or no number.
int number_from(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  if (!text) return otherwise;
  int value = otherwise;
  const auto [end, failure] = std::from_chars(text, text + std::strlen(text), value);
  return failure == std::errc() && *end == '\0' ? value : otherwise;
}

std::string one_line(std::string text) {
  for (char& letter : text)
    if (letter == '\n' || letter == '\r') letter = ' ';
  return text;
}

}  // namespace

void set_deadline(double seconds) {
  CAPSTAN_CHECK(seconds > 0, "a deadline of {} s", seconds);
  deadline_seconds = seconds;
}

double deadline() { return deadline_seconds; }

void set_message_split(std::int64_t bytes) {
  CAPSTAN_CHECK(bytes > 0 && bytes <= std::int64_t(1) << 30, "messages split at {} bytes: MPI counts in 31 bits",
                bytes);
  split_bytes = bytes;
}

std::int64_t message_split() { return split_bytes; }

std::string text_of_tag(int tag) {
  switch (tag) {
    case tags::barrier: return "barrier";
    case tags::broadcast: return "broadcast";
    case tags::all_gather: return "all_gather";
    case tags::reduce: return "reduce";
    case tags::scan: return "exclusive_scan";
  }
  return fmt::format("tag {}", tag);
}

std::string text_of(const Missing& message) {
  return fmt::format("{} rank {} ({}, {} bytes)", message.is_send ? "to" : "from", message.peer,
                     text_of_tag(message.tag), message.bytes);
}

void fail_deadline(const std::vector<Missing>& missing) {
  constexpr std::size_t shown = 8;
  std::string text;
  for (std::size_t i = 0; i < missing.size() && i < shown; ++i) text += (i ? ", " : "") + text_of(missing[i]);
  if (missing.size() > shown) text += fmt::format(", and {} more", missing.size() - shown);
  fail(ExitCode::io, "gave up after {} s without an answer: {}; that rank is stuck, lost, or far behind", deadline(),
       text);
}

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0) return "unknown-host";
  return name;
}

Launcher find_launcher() {
  // The launchers that count for us, the more specific ones first: mpirun inside a Slurm job sets its own variable and
  // inherits Slurm's, which then speak of the job and not of this program.
  struct Known {
    const char* size;
    const char* rank;
  };
  static constexpr Known known[] = {
      {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},  // Open MPI's mpirun
      {"PMI_SIZE", "PMI_RANK"},                          // MPICH, Intel MPI, Cray; srun --mpi=pmi2
      {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},    // MVAPICH
  };
  for (const Known& each : known)
    if (const int size = number_from(each.size, 0); size > 0) return {each.size, size, number_from(each.rank, 0)};

  // srun. A batch script or an salloc shell has SLURM_NTASKS too, but is no step of that many tasks.
  if (std::getenv("SLURM_STEP_ID") && std::getenv("SLURM_PROCID")) {
    const int size = number_from("SLURM_STEP_NUM_TASKS", number_from("SLURM_NTASKS", 0));
    if (size > 1) return {"SLURM_NTASKS", size, number_from("SLURM_PROCID", 0)};
  }
  // PMIx alone names the rank but not the size, which is at least one more.
  if (const int rank = number_from("PMIX_RANK", -1); rank >= 0) return {"PMIX_RANK", rank + 1, rank};
  return {};
}

void print_failure(int rank, int size, const std::string& reason) {
  const std::string who = size > 1 ? fmt::format("rank {} of {} ({}): ", rank, size, host_name()) : "";
  const std::string line = fmt::format("capstan: {}{}\n", who, one_line(reason));
  std::fflush(stdout);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

void end_process(ExitCode code, int rank, int size, const std::string& reason) {
  static std::atomic_flag ending = ATOMIC_FLAG_INIT;
  // A second rank thread that fails meanwhile says nothing and waits for the end.
  while (ending.test_and_set()) std::this_thread::sleep_for(std::chrono::seconds(1));
  print_failure(rank, size, reason);
  std::_Exit(int(code));
}

Error current_error() {
  try {
    throw;
  } catch (const Error& error) { return error; } catch (const std::bad_alloc&) {
    return Error(ExitCode::internal, "out of memory: use more ranks, a smaller micro-batch, or train.recompute");
  } catch (const std::exception& error) { return Error(ExitCode::internal, error.what()); } catch (...) {
    return Error(ExitCode::internal, "an exception without text");
  }
}

void run_guarded(Communicator& world, const std::function<void()>& body) {
  try {
    body();
  } catch (...) {
    const Error error = current_error();
    world.abort(error.code(), error.what());
  }
}

}  // namespace capstan::parallel
