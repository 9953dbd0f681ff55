#pragma once
// Names of functions for messages, read from the program's own symbol table, which knows those of anonymous namespaces, too.

#include <string>

namespace simt {

/// The function that the address lies in, without its parameters: "capstan::kernels::cuda::(anonymous namespace)::add". With
/// `offset`: and where in the program's file, as addr2line wants it.
std::string function_at(const void* address);
std::string place_in_program(const void* address);

}  // namespace simt
