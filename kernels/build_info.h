#pragma once
// Which build this is. The text is made at build time (build_info.cmake fills build_info.cpp.in).

#include <string>

namespace capstan::kernels {

struct BuildInfo {
  std::string version;   ///< "0.1.0"
  std::string commit;    ///< short commit, "-dirty" if files differ from it; "unknown" outside a repository
  std::string compiler;  ///< "GNU 12.2.0"
  std::string type;      ///< "Release"
  std::string options;   ///< "mpi=ON cuda=OFF sanitize=OFF"
};

const BuildInfo& build_info();
/// All of it on one line. Equal on two hosts if they run the same build.
std::string build_text();

}  // namespace capstan::kernels
