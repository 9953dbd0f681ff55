// libFuzzer target: the header parser meets arbitrary bytes. Only capstan::Error may come out; everything else (another
// exception, a crash, a sanitizer report, too much memory or time) ends the run. Seeds: tests/fuzz/make_corpus.py.
//
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -I. tests/fuzz/safetensors_fuzz.cpp \
//     framework/safetensors.cpp framework/files.cpp -lfmt -lxxhash -o /tmp/safetensors_fuzz
//   /tmp/safetensors_fuzz -max_total_time=60 -rss_limit_mb=512 /tmp/new-inputs tests/fuzz/corpus

#include <cstdint>
#include <cstdlib>
#include <string>

#include "framework/safetensors.h"
#include "kernels/check.h"

namespace {

/// What a caller may rely on once the parser has accepted a header.
void check_accepted(const capstan::framework::SafetensorsHeader& header, std::int64_t file_size) {
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : header.tensors) {
    if (name.empty() || tensor.begin < 0 || tensor.end < tensor.begin) std::abort();
    bytes += tensor.end - tensor.begin;
  }
  if (header.data_offset + bytes != file_size) std::abort();
}

void parse(const std::string& bytes, std::int64_t file_size) {
  try {
    check_accepted(capstan::framework::parse_safetensors_header(bytes, file_size, "fuzz"), file_size);
  } catch (const capstan::Error& error) {
    if (error.code() != capstan::ExitCode::bad_data) std::abort();
    if (std::string(error.what()).find('\n') != std::string::npos) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  parse(bytes, std::int64_t(size));
  parse(bytes, std::int64_t(size) + 4096);  // a file that claims more than was read
  parse(bytes, std::int64_t(1) << 62);
  return 0;
}
