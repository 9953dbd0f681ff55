#include "framework/memory_report.h"

#include "framework/metrics_log.h"
#include "framework/plan.h"
#include "kernels/memory.h"

namespace capstan::framework {

namespace {

using kernels::MemoryPlace;

/// The table of the rank whose tensors held most there; empty if no rank had any.
std::string table_of(parallel::Communicator& world, MemoryPlace place) {
  const kernels::MemoryReport report = kernels::memory_report(place);
  const std::int64_t most = world.all_reduce(report.peak, parallel::Reduce::max);
  if (most == 0) return {};
  const int fullest =
      int(world.all_reduce(std::int64_t(report.peak == most ? world.rank() : world.size()), parallel::Reduce::min));
  std::string text = fmt::format("memory of rank {}{}, bytes held by tensors and by operations\n  {:<14}{:>12}{:>12}\n",
                                 fullest, place == MemoryPlace::gpu ? " on its GPU" : "", "for", "most", "at the end");
  for (const kernels::MemoryLine& line : report.lines)
    text += fmt::format("  {:<14}{:>12}{:>12}\n", line.name, bytes_text(line.peak), bytes_text(line.now));
  text += fmt::format("  {:<14}{:>12}{:>12}\n", "all together", bytes_text(report.peak), bytes_text(report.now));
  text += fmt::format("  {:<14}{:>12}{:>12}\n", "free, kept", "", bytes_text(report.kept));
  if (place == MemoryPlace::host)
    text += fmt::format("  {:<14}{:>12}\n", "resident", bytes_text(peak_resident_memory()));
  return world.broadcast(text, fullest);
}

}  // namespace

std::string memory_report_text(parallel::Communicator& world) {
  return table_of(world, MemoryPlace::host) + table_of(world, MemoryPlace::gpu);
}

}  // namespace capstan::framework
