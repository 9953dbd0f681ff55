#pragma once
// Strict reader and writer of the safetensors exchange format (https://github.com/huggingface/safetensors, format
// section). A foreign file is hostile input: everything is checked before it is used (framework/safetensors.cpp lists
// the rules).

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace capstan::framework {

struct SafetensorInfo {
  std::string dtype;  ///< "F32", "F16", "BF16", "F64", "I64", …
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0, end = 0;  ///< bytes within the data part
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorInfo> tensors;
  std::map<std::string, std::string> metadata;
  std::int64_t data_offset = 0;  ///< of the data part in the file
};

/// Parses `bytes` = the first 8 + header bytes (or more) of a file of file_size bytes. `name` begins error lines.
/// Throws Error(bad_data) only.
SafetensorsHeader parse_safetensors_header(const std::string& bytes, std::int64_t file_size, const std::string& name);

class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::string& path);
  const SafetensorsHeader& header() const { return header_; }
  const std::string& path() const { return path_; }
  std::vector<std::uint8_t> raw(const std::string& tensor) const;  ///< the stored bytes
  std::vector<float> as_f32(const std::string& tensor) const;      ///< F32, F16, BF16 (exact) or F64 (rounded)

 private:
  const SafetensorInfo& find(const std::string& tensor) const;  ///< error: bad_data

  std::string path_;
  SafetensorsHeader header_;
};

/// All tensors of a model folder: model.safetensors, or the shards that model.safetensors.index.json names (plain names
/// only). Every tensor of the index must be in its shard and in no other, and every tensor of a shard in the index.
struct SafetensorsModel {
  std::vector<SafetensorsFile> files;
  std::map<std::string, std::size_t> file_of;  ///< tensor name -> index in files
};
SafetensorsModel open_safetensors_model(const std::string& folder);

struct SafetensorToWrite {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> bytes;
};
/// Tensors in the given order, header padded to 8 bytes; written under a temporary name, fsynced, renamed.
void write_safetensors(const std::string& path, const std::vector<SafetensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata);

}  // namespace capstan::framework
