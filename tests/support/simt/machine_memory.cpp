// Memory accesses of the running thread.

#include <cstring>

#include "tests/support/simt/machine.h"
#include "tests/support/simt/reserve.h"
#include "tests/support/simt/symbols.h"

namespace simt {

namespace {

constexpr std::size_t margin = 64 * 1024;  // out of bounds, before and after a block's shared memory
constexpr std::size_t copy_bytes = 16;

const char* verb(Access access) {
  switch (access) {
    case Access::read: return "reads";
    case Access::write: return "writes";
    case Access::atomic: return "atomically changes";
  }
  return "";
}

const char* text_of(Trouble trouble) {
  switch (trouble) {
    case Trouble::none: break;
    case Trouble::unwritten: return "reads memory that nobody has written";
    case Trouble::after_write: return "race: another thread wrote there, and no barrier lies between";
    case Trouble::after_read: return "race: another thread reads there, and no barrier lies between";
    case Trouble::in_flight: return "an asynchronous copy (cp.async) to it was not waited for";
  }
  return "";
}

std::string hex(const void* address) {
  char text[32];
  std::snprintf(text, sizeof text, "%p", address);
  return text;
}

}  // namespace

Machine::Machine() : shared_arena_(static_cast<std::byte*>(reserve(shared_limit + 2 * margin))) {}

bool Machine::is_shared(const void* address) const {
  return reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(shared_arena_) <
         shared_limit + 2 * margin;
}

std::byte* Machine::shared_memory(std::size_t bytes) {
  if (bytes > call_->shared_bytes)
    fail(Fault::Kind::illegal_address, "wants " + std::to_string(bytes) +
                                           " bytes of shared memory, but was launched with " +
                                           std::to_string(call_->shared_bytes));
  return shared_arena_ + margin;
}

void Machine::access(const void* address, std::size_t size, Access access, const void* code) {
  if (memory_.contains(address)) {
    const std::size_t offset = memory_.offset_of(address);
    if (!memory_.valid(offset, size))
      fail_access(address, size, access, code, "out of bounds: " + memory_.place(address));
    return touch(memory_.shadow(), offset, address, size, access, code);
  }
  if (is_shared(address)) {
    const std::byte* const begin = shared_arena_ + margin;
    const std::ptrdiff_t offset = static_cast<const std::byte*>(address) - begin;
    if (offset < 0 || static_cast<std::size_t>(offset) + size > call_->shared_bytes)
      fail_access(address, size, access, code,
                  "out of bounds: byte " + std::to_string(offset) + " of " + std::to_string(call_->shared_bytes) +
                      " bytes of shared memory");
    return touch(shared_shadow_, static_cast<std::size_t>(offset), address, size, access, code);
  }
  if (!stacks_.contains(reinterpret_cast<std::uintptr_t>(address))) access_elsewhere(address, size, access, code);
}

void Machine::access_elsewhere(const void* address, std::size_t size, Access access, const void* code) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const bool parameter = at - reinterpret_cast<std::uintptr_t>(call_) < call_->bytes();
  if (parameter || sections_.contains(at) || pinned_.contains(address, size)) return;
  fail_access(address, size, access, code, "neither device nor shared memory: a pointer of the host, or none");
}

void Machine::touch(Shadow& shadow, std::size_t offset, const void* address, std::size_t size, Access access,
                    const void* code) {
  const Trouble trouble = shadow.touch(clock_, running_, offset, size, access);
  if (trouble == Trouble::none) return;
  std::string who;
  if (trouble == Trouble::after_write || trouble == Trouble::after_read) {
    if (shadow.other() == Shadow::another_block) who = " (it is of another block)";
    else if (shadow.other() != Shadow::unknown) who = " (thread " + name_of(shadow.other()) + " of this block)";
  }
  fail_access(address, size, access, code, text_of(trouble) + who);
}

void Machine::fail_access(const void* address, std::size_t size, Access access, const void* code,
                          const std::string& what) {
  in_kernel = false;
  const bool illegal = what.starts_with("out of bounds") || what.starts_with("neither");
  std::string where;
  if (is_shared(address))
    where = "shared memory at byte " +
            std::to_string(static_cast<const std::byte*>(address) - shared_arena_ - std::ptrdiff_t(margin));
  else if (memory_.contains(address)) where = "device memory, " + memory_.place(address);
  else where = "address " + hex(address);
  fail(illegal ? Fault::Kind::illegal_address : Fault::Kind::other,
       what + "; it " + verb(access) + " " + std::to_string(size) + " bytes of " + where + ", in " + function_at(code) +
           " (" + place_in_program(code) + ")");
}

void Machine::misaligned(const void* address, std::size_t alignment, const void* code) {
  fail(Fault::Kind::misaligned, "misaligned: address " + hex(address) + " is not a multiple of " +
                                    std::to_string(alignment) + ", in " + function_at(code) + " (" +
                                    place_in_program(code) + ")");
}

void Machine::begin_copy(void* shared, const void* global, bool valid) {
  const void* const code = call_->kernel;
  if (!is_shared(shared)) fail(Fault::Kind::illegal_address, "cp.async to what is not shared memory: " + hex(shared));
  if (valid && !memory_.contains(global) && !pinned_.contains(global, copy_bytes))
    fail(Fault::Kind::illegal_address, "cp.async from what is not device memory: " + hex(global));
  check_access(shared, copy_bytes, copy_bytes, Access::write, code);
  if (valid) check_access(global, copy_bytes, copy_bytes, Access::read, code);
  std::memset(shared, 0xff, copy_bytes);
  const auto target = static_cast<std::byte*>(shared);
  shared_shadow_.begin_copy(static_cast<std::size_t>(target - shared_arena_) - margin, copy_bytes);
  self().copies.push_back({target, valid ? static_cast<const std::byte*>(global) : nullptr, self().open_group});
}

void Machine::commit_copies() { ++self().open_group; }

void Machine::wait_copies(int groups) {
  std::vector<Copy>& copies = self().copies;
  const int landed_before = self().open_group - groups;
  for (const Copy& copy : copies)
    if (copy.group < landed_before) land(copy);
  std::erase_if(copies, [&](const Copy& copy) { return copy.group < landed_before; });
}

void Machine::land(const Copy& copy) {
  const std::size_t offset = static_cast<std::size_t>(copy.shared - shared_arena_) - margin;
  shared_shadow_.end_copy(offset, copy_bytes);
  access(copy.shared, copy_bytes, Access::write, call_->kernel);
  if (copy.global) std::memcpy(copy.shared, copy.global, copy_bytes);
  else std::memset(copy.shared, 0, copy_bytes);
}

}  // namespace simt
