// Writing checkpoints, and clearing old ones away. The order on disk is what makes a power cut harmless: files, folder,
// rename, parent.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <random>

#include "framework/checkpoint.h"
#include "framework/checkpoint_folders.h"
#include "framework/checkpoint_manifest.h"
#include "framework/files.h"
#include "framework/hdf5_file.h"
#include "kernels/converted.h"
#include "kernels/host_view.h"
#include "parallel/failure.h"

namespace capstan::framework {
namespace {

namespace fs = std::filesystem;

constexpr char temporary_prefix[] = ".tmp-";

/// Runs work on every rank. If it fails on one, all ranks throw the error of the lowest that failed.
void together(parallel::Communicator& world, const std::function<void()>& work) {
  std::string verdict;  // exit code and text
  try {
    work();
  } catch (...) {
    const Error error = parallel::current_error();
    verdict = fmt::format("{} {}", int(error.code()), error.what());
  }
  const std::vector<std::string> verdicts = world.all_gather(verdict);
  for (std::size_t rank = 0; rank < verdicts.size(); ++rank) {
    if (verdicts[rank].empty()) continue;
    const std::string text = verdicts[rank].substr(verdicts[rank].find(' ') + 1);
    throw Error(ExitCode(std::stoi(verdicts[rank])), rank == 0 ? text : fmt::format("rank {}: {}", rank, text));
  }
}

void remove_folder(const fs::path& folder) {
  std::error_code ignored;
  fs::remove_all(folder, ignored);
}

/// What a killed save has left of this name.
void remove_leftovers(const std::string& parent, const std::string& prefix) {
  for (const std::string& entry : list_folder(parent))
    if (entry.compare(0, prefix.size(), prefix) == 0) remove_folder(fs::path(parent) / entry);
}

std::string make_temporary_folder(const std::string& parent, const std::string& name) {
  std::random_device random;
  const std::string folder =
      (fs::path(parent) / fmt::format("{}{}-{:08x}{:08x}", temporary_prefix, name, random(), random())).string();
  std::error_code error;
  if (!fs::create_directory(folder, error))
    fail(ExitCode::io, "{}: cannot be made: {}", folder, error ? error.message() : "it exists");
  return folder;
}

/// Gives the finished folder its name. A folder that has the name already is exchanged for it in one step where the
/// file system can.
void rename_folder(const std::string& temporary, const std::string& path) {
  if (::rename(temporary.c_str(), path.c_str()) == 0) return;
  if (errno != ENOTEMPTY && errno != EEXIST)
    fail(ExitCode::io, "{}: cannot rename the finished folder to this name: {}", path, std::strerror(errno));
  if (::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0)
    return remove_folder(temporary);
  const std::string old = temporary + "-old";
  if (::rename(path.c_str(), old.c_str()) != 0 || ::rename(temporary.c_str(), path.c_str()) != 0)
    fail(ExitCode::io, "{}: cannot replace the folder of this name: {}", path, std::strerror(errno));
  remove_folder(old);
}

Hdf5Type stored_type(const View& view) { return view.type() == DType::f64 ? Hdf5Type::f64 : Hdf5Type::f32; }

/// Size and checksum of a file that is complete.
ManifestFile describe(const std::string& folder, const std::string& name) {
  const std::string path = (fs::path(folder) / name).string();
  ManifestFile file;
  file.name = name;
  file.bytes = InputFile(path).size();
  file.xxh3 = hex(xxh3_of_file(path));
  return file;
}

/// One rank's part of every tensor.
class WeightsWriter {
 public:
  WeightsWriter(const std::string& folder, int rank)
      : folder_(folder), name_(fmt::format("weights-{:04}.h5", rank)),
        file_(Hdf5File::create((fs::path(folder) / name_).string())) {}

  /// buffer: elements [begin, end) of the trainable buffer, of which the part that lies in p is written.
  void write(const std::string& kind, const Parameter& p, const View& buffer, std::int64_t begin, std::int64_t end) {
    const std::int64_t first = std::max(p.offset, begin), last = std::min(p.offset + p.shape.elements(), end);
    if (first < last) put({kind, p.name, first - p.offset, last - p.offset}, buffer.rows(first - begin, last - begin));
  }
  void write_all(const Parameter& p) {
    const View values = p.value.reshape({p.shape.elements()});
    const Slice all{"value", p.name, 0, p.shape.elements()};
    if (values.type() == DType::bf16) put(all, kernels::converted(values, DType::f32));
    else put(all, values);
  }

  ManifestFile finish() {
    file_.close();
    ManifestFile entry = describe(folder_, name_);
    entry.slices = std::move(slices_);
    return entry;
  }

 private:
  void put(const Slice& slice, const View& values) {
    const kernels::HostView host(values);
    file_.write(slice.dataset(), stored_type(values), {values.elements()}, host.view().data());
    slices_.push_back(slice);
  }

  std::string folder_, name_;
  Hdf5File file_;
  std::vector<Slice> slices_;
};

ManifestFile write_weights(const std::string& folder, int rank, int ranks, const Parameters& parameters,
                           const OptimizerShard& optimizer) {
  WeightsWriter writer(folder, rank);
  const ShardRange mine = shard_range(parameters.trainable_elements(), rank, ranks);
  const std::int64_t shard = optimizer.end - optimizer.begin;
  if (optimizer.m || optimizer.v)
    CAPSTAN_CHECK(shard >= 0 && optimizer.m.elements() >= shard && optimizer.v.elements() >= shard,
                  "moments of {} and {} elements for [{}, {})", optimizer.m.elements(), optimizer.v.elements(),
                  optimizer.begin, optimizer.end);
  for (const Parameter& p : parameters.all()) {
    if (!p.trainable && rank == 0) writer.write_all(p);
    if (!p.trainable) continue;
    if (optimizer.values) writer.write("value", p, optimizer.values, optimizer.begin, optimizer.end);
    else writer.write("value", p, parameters.trainable_values().rows(mine.begin, mine.end), mine.begin, mine.end);
    if (!optimizer.m) continue;
    writer.write("m", p, optimizer.m, optimizer.begin, optimizer.end);
    writer.write("v", p, optimizer.v, optimizer.begin, optimizer.end);
  }
  return writer.finish();
}

void write_extra(const std::string& folder, const std::string& name, const std::string& bytes,
                 std::vector<ManifestFile>& files) {
  if (bytes.empty()) return;
  write_text_atomically((fs::path(folder) / name).string(), bytes);
  files.push_back(describe(folder, name));
}

/// Rank 0's last part: manifest, fsync, rename, fsync.
void commit(const std::string& temporary, const std::string& path, Manifest manifest, const CheckpointExtras& extras,
            const Parameters& parameters, const std::vector<std::string>& entries) {
  for (const std::string& entry : entries) manifest.files.push_back(parse_entry(entry));
  const std::string& tokenizer = manifest.header.tokenizer;
  write_extra(temporary, is_tokenizer_file(tokenizer) ? tokenizer : tokenizer_model_name, extras.tokenizer_model,
              manifest.files);
  write_extra(temporary, hf_config_name, extras.hf_config, manifest.files);
  for (const Parameter& p : parameters.all()) {
    std::vector<std::int64_t> shape;
    for (int axis = 0; axis < p.shape.rank(); ++axis) shape.push_back(p.shape[axis]);
    manifest.tensors.push_back({p.name, shape, kernels::name_of(kernels::wide(p.value.type()))});
  }
  const std::string text = write_manifest(manifest);
  parse_manifest(text, path + "/" + manifest_name);  // what no reader would take must not get a final name
  write_text_atomically((fs::path(temporary) / manifest_name).string(), text);
  fsync_path(temporary);
  rename_folder(temporary, path);
  fsync_path(fs::path(path).parent_path().string());
}

std::string existing_parent(const std::string& folder) {
  std::error_code ignored;
  fs::path path = fs::absolute(folder, ignored);
  while (!fs::exists(path, ignored) && path.has_relative_path()) path = path.parent_path();
  return path.string();
}

}  // namespace

std::int64_t checkpoint_bytes(const Parameters& parameters, bool with_optimizer) {
  constexpr std::int64_t per_slice = 1024, fixed = 1 << 20;  // HDF5's own structures; manifest, tokenizer
  std::int64_t bytes = fixed;
  for (const Parameter& p : parameters.all()) {
    const std::int64_t copies = with_optimizer && p.trainable ? 3 : 1;
    bytes += copies * (p.shape.elements() * kernels::size_of(kernels::wide(p.value.type())) + per_slice);
  }
  return bytes;
}

void require_free_bytes(const std::string& folder, std::int64_t bytes) {
  const std::string existing = existing_parent(folder);
  const std::int64_t available = free_bytes(existing);
  if (available < bytes)
    fail(ExitCode::io, "{}: a checkpoint needs {} bytes, {} are free; free some space or choose another folder", folder,
         bytes, available);
}

std::string save_checkpoint(parallel::Communicator& world, const std::string& parent, const std::string& name,
                            const CheckpointHeader& header, const CheckpointExtras& extras,
                            const Parameters& parameters, const OptimizerShard& optimizer) {
  const std::string final_name = name.empty() ? step_folder_name(header.step) : name;
  const std::string path = (fs::path(parent) / final_name).string();
  const bool first = world.rank() == 0;
  std::string temporary;
  together(world, [&] {
    if (!first) return;
    CAPSTAN_CHECK(is_plain_name(final_name), "checkpoint '{}'", printable(final_name));
    require_free_bytes(parent, checkpoint_bytes(parameters, bool(optimizer.m)) +
                                   std::int64_t(extras.tokenizer_model.size() + extras.hf_config.size()));
    std::error_code error;
    fs::create_directories(parent, error);
    if (error) fail(ExitCode::io, "{}: cannot be made: {}", parent, error.message());
    remove_leftovers(parent, temporary_prefix + final_name + "-");
    temporary = make_temporary_folder(parent, final_name);
  });
  try {
    temporary = world.broadcast(temporary, 0);
    std::string entry;
    together(world,
             [&] { entry = write_entry(write_weights(temporary, world.rank(), world.size(), parameters, optimizer)); });
    const std::vector<std::string> entries = world.all_gather(entry);
    together(world, [&] {
      if (first) commit(temporary, path, {header, extras.source, {}, {}}, extras, parameters, entries);
    });
  } catch (...) {
    if (first) remove_folder(temporary);
    throw;
  }
  return path;
}

void prune_checkpoints(const std::string& parent, std::int64_t keep, std::int64_t saved) {
  CAPSTAN_CHECK(keep >= 1, "keep {}", keep);
  remove_leftovers(parent, temporary_prefix);
  std::int64_t kept = 0;
  for (const auto& [step, name] : step_folders(parent)) {
    const bool passed_over = saved >= 0 && step > saved;
    if (!passed_over && kept++ < keep) continue;
    // Under its name a folder is whole or gone: a kill in the middle leaves a leftover.
    const std::string doomed = (fs::path(parent) / (temporary_prefix + name + "-old")).string();
    if (::rename((fs::path(parent) / name).c_str(), doomed.c_str()) == 0) remove_folder(doomed);
  }
}

}  // namespace capstan::framework
