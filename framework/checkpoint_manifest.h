#pragma once
// manifest.json of a checkpoint: what the folder holds and what it must look like on disk. The last field, `checksum`,
// is the xxh3 of the text itself with 16 zeros in its place, so that damage to the manifest is found like any other.

#include <cstdint>
#include <string>
#include <vector>

#include "framework/checkpoint.h"

namespace capstan::framework {

constexpr char manifest_name[] = "manifest.json";
constexpr char hf_config_name[] = "hf_config.json";

/// Elements [begin, end) of a tensor, as dataset `kind`:`tensor` of a weights file. Kinds: value, m, v.
struct Slice {
  std::string kind, tensor;
  std::int64_t begin = 0, end = 0;
  std::string dataset() const { return kind + ":" + tensor; }
};

struct ManifestFile {
  std::string name;
  std::int64_t bytes = 0;
  std::string xxh3;           ///< hex
  std::vector<Slice> slices;  ///< of a weights file
};

struct Manifest {
  CheckpointHeader header;
  std::vector<SourceTensor> source;
  std::vector<Checkpoint::TensorInfo> tensors;
  std::vector<ManifestFile> files;
};

std::string write_manifest(const Manifest& manifest);

/// `name` begins error lines. A foreign manifest is hostile input: afterwards file names are plain and unlike, tensor
/// names unlike, sizes do not overflow and are backed by the files' claimed bytes, and the slices of each kind cover a
/// tensor exactly or, for moments, not at all. Error: bad_data.
Manifest parse_manifest(const std::string& text, const std::string& name);

/// One file's entry as text, to send it to another rank.
std::string write_entry(const ManifestFile& file);
ManifestFile parse_entry(const std::string& text);

}  // namespace capstan::framework
