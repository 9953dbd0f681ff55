#include "parallel/placement.h"

#include <algorithm>
#include <map>
#include <sstream>

#include "kernels/device_cuda.h"
#include "parallel/failure.h"

namespace capstan::parallel {

namespace {

/// The GPU of this rank of `host_ranks`.
int gpu_of_rank(const Communicator& host_ranks, bool threads) {
  kernels::require_device(0);
  const int count = kernels::cuda_device_count();
  // One GPU where there are more ranks: the launcher has shown each rank its own, or two ranks have the same, which is found below.
  if (threads || count == 1) return 0;
  if (host_ranks.size() > count)
    fail(ExitCode::config, "{} ranks on host {}, which has {} GPUs: start at most one rank per GPU there",
         host_ranks.size(), host_name(), count);
  return host_ranks.rank();
}

std::string packed(const PlacedRank& rank) {
  return fmt::format("{}\n{}\n{}\n{}\n{}", rank.host, rank.number, rank.name, rank.bus, rank.gib);
}

PlacedRank unpacked(const std::string& text) {
  std::istringstream lines(text);
  PlacedRank rank;
  std::getline(lines, rank.host);
  lines >> rank.number >> std::ws;
  std::getline(lines, rank.name);
  std::getline(lines, rank.bus);
  lines >> rank.gib;
  return rank;
}

PlacedRank describe(int number) {
  const kernels::GpuInfo gpu = kernels::gpu_info(number);
  return {host_name(), number, gpu.name, gpu.bus, double(gpu.memory) / double(std::int64_t(1) << 30)};
}

}  // namespace

OnDevice::OnDevice(Communicator& world, kernels::Device device) : world_(world) {
  if (device != kernels::Device::cuda) return;
  const bool threads = world.backend() == "threads";
  const auto host_ranks = world.split_by_host();
  // A rank that finds no GPU tells the others, so that none waits for it.
  std::string trouble, mine;
  int number = 0;
  try {
    number = gpu_of_rank(*host_ranks, threads);
    mine = packed(describe(number));
  } catch (...) { trouble = current_error().what(); }
  for (const std::string& text : world.all_gather(trouble))
    if (!text.empty()) fail(ExitCode::config, "{}", text);
  std::vector<PlacedRank> ranks;
  for (const std::string& text : world.all_gather(mine)) ranks.push_back(unpacked(text));
  if (!threads) refuse_shared_gpus(ranks);
  table_ = placement_table(ranks);
  gpu_ = std::make_unique<kernels::UseDevice>(number);
  if (world.size() > 1 && !threads) nccl_ = make_nccl_communicator(world);
}

void refuse_shared_gpus(const std::vector<PlacedRank>& ranks) {
  std::map<std::string, std::size_t> taken;  // host and bus → rank
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const PlacedRank& placed = ranks[rank];
    const auto [first, is_new] = taken.emplace(placed.host + " " + placed.bus, rank);
    if (!is_new)
      fail(ExitCode::config,
           "ranks {} and {} on host {} have the same GPU ({}, {}): start as many ranks there as it has GPUs, or show "
           "each "
           "rank another one (CUDA_VISIBLE_DEVICES)",
           first->second, rank, placed.host, placed.name, placed.bus);
  }
}

std::string placement_table(const std::vector<PlacedRank>& ranks) {
  std::size_t widest = 4;
  for (const PlacedRank& rank : ranks) widest = std::max(widest, rank.host.size());
  std::string text = fmt::format("{:<{}}  rank  GPU\n", "host", widest);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    text += fmt::format("{:<{}}  {:>4}  {}: {}, {:.0f} GiB, {}\n", ranks[rank].host, widest, rank, ranks[rank].number,
                        ranks[rank].name, ranks[rank].gib, ranks[rank].bus);
  return text;
}

}  // namespace capstan::parallel
