#include "tests/support/simt/fibre.h"

#include <sys/mman.h>

#include "tests/support/simt/reserve.h"

extern "C" void simt_switch_stack(void** save, void* load);

// System V ABI: a call keeps rbx, rbp and r12 to r15. They are left on the old stack, and the others are taken from the new one.
asm(R"(
.text
.globl simt_switch_stack
.type simt_switch_stack, @function
simt_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size simt_switch_stack, .-simt_switch_stack
)");

namespace simt {

namespace {
constexpr std::size_t page = 4096;
}

void Fibre::prepare(std::byte* top, void (*entry)()) {
  constexpr int kept_registers = 6;
  // From the top: the return address of entry(), which is never used, entry() itself, and the registers. Entered by `ret`,
  // entry() finds its stack as after a call: 8 bytes off a multiple of 16.
  void** slot = reinterpret_cast<void**>(top);
  *--slot = nullptr;
  *--slot = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kept_registers; ++i) *--slot = nullptr;
  stack_pointer_ = slot;
}

void Fibre::switch_to(Fibre& from, const Fibre& to) { simt_switch_stack(&from.stack_pointer_, to.stack_pointer_); }

FibreStacks::FibreStacks() : begin_(static_cast<std::byte*>(reserve(bytes * std::size_t(count)))) {
  for (int i = 0; i < count; ++i) forbid(begin_ + std::size_t(i) * bytes, page);
}

FibreStacks::~FibreStacks() { munmap(begin_, bytes * std::size_t(count)); }

}  // namespace simt
