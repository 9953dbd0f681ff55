#include "framework/memory_report.h"

#include "framework/metrics_log.h"
#include "framework/plan.h"
#include "kernels/memory.h"

namespace capstan::framework {

std::string memory_report_text(parallel::Communicator& world) {
  const kernels::MemoryReport report = kernels::memory_report();
  const std::int64_t most = world.all_reduce(report.peak, parallel::Reduce::max);
  const int fullest =
      int(world.all_reduce(std::int64_t(report.peak == most ? world.rank() : world.size()), parallel::Reduce::min));
  std::string text = fmt::format("memory of rank {}, bytes held by tensors and by operations\n  {:<14}{:>12}{:>12}\n",
                                 fullest, "for", "most", "at the end");
  for (const kernels::MemoryLine& line : report.lines)
    text += fmt::format("  {:<14}{:>12}{:>12}\n", line.name, bytes_text(line.peak), bytes_text(line.now));
  text += fmt::format("  {:<14}{:>12}{:>12}\n", "all together", bytes_text(report.peak), bytes_text(report.now));
  text += fmt::format("  {:<14}{:>12}{:>12}\n", "free, kept", "", bytes_text(report.kept));
  text += fmt::format("  {:<14}{:>12}\n", "resident", bytes_text(peak_resident_memory()));
  return world.broadcast(text, fullest);
}

}  // namespace capstan::framework
