#include "tests/support/simt/memory.h"

#include <link.h>

#include <algorithm>
#include <cstring>

namespace simt {

DeviceMemory::DeviceMemory()
    : begin_(static_cast<std::byte*>(reserve(reserved))),
      valid_(static_cast<std::uint8_t*>(reserve(reserved / granule))), shadow_(Shadow::Kind::global, reserved) {}

void* DeviceMemory::allocate(std::size_t bytes) {
  const std::size_t pages = (bytes + 2 * margin + page - 1) / page * page;
  if (bytes > capacity_ || used_ + bytes > capacity_ || next_ + pages > reserved) return nullptr;
  const std::size_t offset = next_ + margin;
  next_ += pages;
  used_ += bytes;
  allocations_[offset] = {bytes, false};
  set_valid(offset, bytes, true);
  return begin_ + offset;
}

bool DeviceMemory::release(void* memory) {
  const auto found = allocations_.find(offset_of(memory));
  if (found == allocations_.end() || found->second.freed) return false;
  const auto [offset, allocation] = *found;
  set_valid(offset, allocation.bytes, false);
  used_ -= allocation.bytes;
  found->second.freed = true;
  forget_bytes(offset, allocation.bytes);
  return true;
}

void DeviceMemory::forget_bytes(std::size_t offset, std::size_t bytes) {
  const std::size_t first = offset - margin, pages = (bytes + 2 * margin + page - 1) / page * page;
  forget(begin_ + first, pages);
  shadow_.forget_pages(first, pages);
}

void DeviceMemory::forget_contents() {
  for (const auto& [offset, allocation] : allocations_)
    if (!allocation.freed) forget_bytes(offset, allocation.bytes);
}

void DeviceMemory::release_all() {
  for (const auto& [offset, allocation] : allocations_)
    if (!allocation.freed) release(begin_ + offset);
}

void DeviceMemory::set_valid(std::size_t offset, std::size_t bytes, bool valid) {
  std::uint8_t* const first = valid_ + offset / granule;
  std::memset(first, valid ? granule : 0, bytes / granule);
  if (bytes % granule != 0) first[bytes / granule] = valid ? static_cast<std::uint8_t>(bytes % granule) : 0;
}

bool DeviceMemory::valid_range(std::size_t offset, std::size_t size) const {
  const std::size_t end = offset + size;
  if (offset >= reserved || end > reserved) return false;
  for (std::size_t g = offset / granule; g * granule < end; ++g)
    if (valid_[g] < std::min(end - g * granule, granule)) return false;
  return true;
}

std::string DeviceMemory::place(const void* address) const {
  const std::size_t offset = offset_of(address);
  auto after = allocations_.upper_bound(offset);
  if (after == allocations_.begin()) return "before all device memory";
  const auto& [begin, allocation] = *std::prev(after);
  const std::size_t inside = offset - begin;
  const std::string of =
      " an allocation of " + std::to_string(allocation.bytes) + " bytes" + (allocation.freed ? " that was freed" : "");
  if (inside < allocation.bytes) return std::to_string(inside) + " bytes into" + of;
  const bool nearer_to_next = after != allocations_.end() && after->first - offset < margin;
  if (nearer_to_next)
    return std::to_string(after->first - offset) + " bytes before an allocation of " +
           std::to_string(after->second.bytes) + " bytes";
  return std::to_string(inside - allocation.bytes) + " bytes past the end of" + of;
}

void DeviceMemory::note_copy(const void* to, const void* from, std::size_t size) {
  // Copying is no use yet: what was not written before the copy is not written after it.
  const std::size_t target = offset_of(to), source = offset_of(from);
  for (std::size_t done = 0; done < size;) {
    const std::size_t written = shadow_.written(source + done, size - done);
    shadow_.mark_written(target + done, written);
    done += written;
    if (done < size) shadow_.mark_unwritten(target + done++, 1);
  }
}

bool PinnedMemory::contains(const void* address, std::size_t size) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const auto after = ranges_.upper_bound(at);
  if (after == ranges_.begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return at + size <= begin + bytes;
}

bool LoadedSections::find(std::uintptr_t address) {
  if (last_ < ranges_.size() && address - ranges_[last_].begin < ranges_[last_].end - ranges_[last_].begin) return true;
  for (last_ = 0; last_ < ranges_.size(); ++last_)
    if (ranges_[last_].begin <= address && address < ranges_[last_].end) return true;
  return false;
}

bool LoadedSections::contains(std::uintptr_t address) {
  if (find(address)) return true;
  ranges_.clear();  // perhaps a library was loaded since
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* ranges) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& header = info->dlpi_phdr[i];
          const std::uintptr_t begin = info->dlpi_addr + header.p_vaddr;
          if (header.p_type == PT_LOAD)
            static_cast<std::vector<Range>*>(ranges)->push_back({begin, begin + header.p_memsz});
        }
        return 0;
      },
      &ranges_);
  return find(address);
}

}  // namespace simt
