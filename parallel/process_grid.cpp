#include "parallel/process_grid.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>

namespace capstan::parallel {

ProcessGrid make_process_grid(Communicator& world, int ring_size) {
  const int ranks = world.size();
  if (ring_size < 1 || ranks % ring_size != 0) {
    std::string allowed;
    for (int size = 1; size <= ranks; ++size)
      if (ranks % size == 0) allowed += fmt::format("{}{}", allowed.empty() ? "" : ", ", size);
    fail(ExitCode::config, "a ring of {} ranks does not divide the {} ranks of this run; allowed ring sizes: {}",
         ring_size, ranks, allowed);
  }
  const int data_rank = world.rank() / ring_size, ring_rank = world.rank() % ring_size;
  // In this order on every rank: a split is a collective.
  std::unique_ptr<Communicator> data = world.split(ring_rank, data_rank);
  std::unique_ptr<Communicator> ring = world.split(data_rank, ring_rank);
  return {world, std::move(data), std::move(ring), data_rank, ring_rank, ranks / ring_size, ring_size};
}

std::vector<std::string> hosts_of_ranks(Communicator& world) { return world.all_gather(host_name()); }

namespace {

/// The host and the cores that the calling thread may use: equal for ranks that share them. And how many these are.
std::pair<std::string, int> usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return {host_name(), 1};
  std::string text = host_name();
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &cores)) text += fmt::format(" {}", core);
  return {text, CPU_COUNT(&cores)};
}

}  // namespace

int threads_of_rank(Communicator& world, std::int64_t wanted) {
  const auto [mine, cores] = usable_cores();
  const std::vector<std::string> all = world.all_gather(mine);
  if (wanted > 0) return int(wanted);
  if (const char* text = std::getenv("OMP_NUM_THREADS"); text && std::atoi(text) > 0) return std::atoi(text);
  return std::max(1, cores / int(std::count(all.begin(), all.end(), mine)));
}

std::string text_of_hosts(const std::vector<std::string>& hosts) {
  std::string text;
  for (std::size_t first = 0; first < hosts.size();) {
    std::size_t last = first;
    while (last + 1 < hosts.size() && hosts[last + 1] == hosts[first]) ++last;
    text += first == 0 ? "rank " : ", ";
    text += first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
    text += " on " + hosts[first];
    first = last + 1;
  }
  return text;
}

}  // namespace capstan::parallel
