#include "tests/support/simt/symbols.h"

#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <vector>

namespace simt {

namespace {

/// Where the program lies in memory, less where its file says that it does.
std::uintptr_t load_offset() {
  std::uintptr_t offset = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* first) {
        *static_cast<std::uintptr_t*>(first) = info->dlpi_addr;
        return 1;  // the program itself comes first
      },
      &offset);
  return offset;
}

const std::vector<char>& program_file() {
  static const std::vector<char> content = [] {
    std::ifstream file("/proc/self/exe", std::ios::binary);
    return std::vector<char>(std::istreambuf_iterator<char>(file), {});
  }();
  return content;
}

/// The mangled name of the function that holds the address of the file; empty if there is none.
std::string mangled_at(std::uintptr_t address) {
  const std::vector<char>& file = program_file();
  ElfW(Ehdr) header;
  if (file.size() < sizeof header) return "";
  std::memcpy(&header, file.data(), sizeof header);
  std::vector<ElfW(Shdr)> sections(header.e_shnum);
  std::memcpy(sections.data(), file.data() + header.e_shoff, sections.size() * sizeof(ElfW(Shdr)));
  for (const auto& section : sections) {
    if (section.sh_type != SHT_SYMTAB) continue;
    for (std::size_t at = 0; at + sizeof(ElfW(Sym)) <= section.sh_size; at += sizeof(ElfW(Sym))) {
      ElfW(Sym) symbol;
      std::memcpy(&symbol, file.data() + section.sh_offset + at, sizeof symbol);
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && address - symbol.st_value < symbol.st_size)
        return file.data() + sections[section.sh_link].sh_offset + symbol.st_name;
    }
  }
  return "";
}

/// "void a::(anonymous namespace)::f<float, 4>(float*, int)" -> "a::(anonymous namespace)::f<float, 4>"
std::string without_parameters(std::string name) {
  const std::string anonymous = "(anonymous namespace)", mark = "{anonymous}";
  for (std::size_t at; (at = name.find(anonymous)) != std::string::npos;) name.replace(at, anonymous.size(), mark);
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (name[i] == '(' && depth == 0) {
      name.resize(i);
      break;
    }
  }
  return name.starts_with("void ") ? name.substr(5) : name;
}

}  // namespace

std::string function_at(const void* address) {
  const std::string mangled = mangled_at(reinterpret_cast<std::uintptr_t>(address) - load_offset());
  if (mangled.empty()) return "(a function without a name)";
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status),
                                                    std::free);
  return without_parameters(status == 0 ? name.get() : mangled);
}

std::string place_in_program(const void* address) {
  std::ostringstream text;
  text << "addr2line 0x" << std::hex << reinterpret_cast<std::uintptr_t>(address) - load_offset();
  return text.str();
}

}  // namespace simt
