// Reading checkpoints; checkpoint_save.cpp writes them.

#include "framework/checkpoint.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>

#include "framework/checkpoint_folders.h"
#include "framework/checkpoint_manifest.h"
#include "framework/files.h"
#include "framework/hdf5_file.h"
#include "kernels/host_view.h"

namespace capstan::framework {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t manifest_limit = std::int64_t(64) << 20;  // bytes
constexpr std::size_t least_digits = 6, most_digits = 15;

constexpr char help[] = "use another checkpoint, or get this one again";

std::string join(const std::string& folder, const std::string& name) { return (fs::path(folder) / name).string(); }

/// Size and checksum of a file against the manifest.
void verify(const std::string& folder, const ManifestFile& file) {
  const std::string path = join(folder, file.name);
  std::error_code ignored;
  if (!fs::exists(path, ignored)) fail(ExitCode::bad_data, "{}: missing, but the manifest lists it; {}", path, help);
  const std::int64_t bytes = InputFile(path).size();
  if (bytes != file.bytes)
    fail(ExitCode::bad_data, "{}: damaged: {} bytes, the manifest says {}; {}", path, bytes, file.bytes, help);
  const std::string xxh3 = hex(xxh3_of_file(path));
  if (xxh3 != file.xxh3)
    fail(ExitCode::bad_data, "{}: damaged: its checksum is {}, the manifest says {}; {}", path, xxh3,
         printable(file.xxh3), help);
}

/// A slice of one (kind, tensor) and the file that holds it.
struct Piece {
  std::size_t file;
  Slice slice;
};

std::optional<std::int64_t> step_of(const std::string& name) {
  constexpr std::string_view prefix = "step-";
  if (name.compare(0, prefix.size(), prefix) != 0) return std::nullopt;
  const std::string digits = name.substr(prefix.size());
  const bool number = std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!number || digits.size() < least_digits || digits.size() > most_digits) return std::nullopt;
  return std::stoll(digits);
}

std::vector<std::int64_t> extents(const Shape& shape) {
  std::vector<std::int64_t> result;
  for (int axis = 0; axis < shape.rank(); ++axis) result.push_back(shape[axis]);
  return result;
}

}  // namespace

std::string step_folder_name(std::int64_t step) { return fmt::format("step-{:06}", step); }

std::vector<std::pair<std::int64_t, std::string>> step_folders(const std::string& parent) {
  std::vector<std::pair<std::int64_t, std::string>> found;
  for (const std::string& name : list_folder(parent))
    if (const auto step = step_of(name)) found.emplace_back(*step, name);
  std::sort(found.rbegin(), found.rend());
  return found;
}

struct Checkpoint::State {
  std::string folder;
  Manifest manifest;
  CheckpointExtras extras;
  std::map<std::string, std::vector<Piece>> pieces;  // "kind:tensor" -> in order of their elements
  std::map<std::size_t, Hdf5File> open_files;        // opened when first needed

  const Hdf5File& file(std::size_t index) {
    const auto found = open_files.find(index);
    if (found != open_files.end()) return found->second;
    return open_files.emplace(index, Hdf5File::open(join(folder, manifest.files[index].name))).first->second;
  }
};

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Checkpoint Checkpoint::open(const std::string& folder) {
  const std::string path = join(folder, manifest_name);
  auto state = std::make_unique<State>();
  state->folder = folder;
  state->manifest = parse_manifest(read_file(path, manifest_limit), path);
  state->extras.source = state->manifest.source;
  for (std::size_t i = 0; i < state->manifest.files.size(); ++i) {
    const ManifestFile& file = state->manifest.files[i];
    verify(folder, file);
    for (const Slice& slice : file.slices) state->pieces[slice.dataset()].push_back({i, slice});
    if (is_tokenizer_file(file.name)) state->extras.tokenizer_model = read_file(join(folder, file.name));
    if (file.name == hf_config_name) state->extras.hf_config = read_file(join(folder, file.name));
  }
  for (auto& [dataset, pieces] : state->pieces)
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& a, const Piece& b) { return a.slice.begin < b.slice.begin; });
  const std::string& tokenizer = state->manifest.header.tokenizer;
  const auto is_it = [&](const ManifestFile& file) { return file.name == tokenizer; };
  if (is_tokenizer_file(tokenizer) && std::none_of(state->manifest.files.begin(), state->manifest.files.end(), is_it))
    fail(ExitCode::bad_data, "{}: names the tokenizer {}, but does not list the file; {}", path, tokenizer, help);
  return Checkpoint(std::move(state));
}

const CheckpointHeader& Checkpoint::header() const { return state_->manifest.header; }
const CheckpointExtras& Checkpoint::extras() const { return state_->extras; }
const std::string& Checkpoint::folder() const { return state_->folder; }
const std::vector<Checkpoint::TensorInfo>& Checkpoint::tensors() const { return state_->manifest.tensors; }

bool Checkpoint::has_optimizer() const {
  const auto first_moment = state_->pieces.lower_bound("m:");
  return first_moment != state_->pieces.end() && first_moment->first.compare(0, 2, "m:") == 0;
}

void Checkpoint::read(const std::string& kind, const std::string& name, std::int64_t begin, std::int64_t end,
                      const View& out) const {
  const auto found = state_->pieces.find(kind + ":" + name);
  if (found == state_->pieces.end())
    fail(ExitCode::bad_data, "{}: holds no {} of tensor '{}'; is it of another model?", folder(), kind, name);
  const std::int64_t elements = found->second.back().slice.end;
  if (begin < 0 || end < begin || end > elements)
    fail(ExitCode::bad_data, "{}: tensor '{}' has {} elements, [{}, {}) were asked for; is it of another model?",
         folder(), name, elements, begin, end);
  CAPSTAN_CHECK(out.elements() >= end - begin, "{} elements into {}", end - begin, out.elements());
  for (const Piece& piece : found->second) {
    const std::int64_t first = std::max(begin, piece.slice.begin), last = std::min(end, piece.slice.end);
    if (first >= last) continue;
    const Hdf5File& file = state_->file(piece.file);
    const Hdf5Dataset info = file.dataset(piece.slice.dataset());
    const bool real = info.type == Hdf5Type::f32 || info.type == Hdf5Type::f64;
    if (!real || info.shape != std::vector{piece.slice.end - piece.slice.begin})
      fail(ExitCode::bad_data, "{}: dataset '{}' is {} [{}], the manifest says {} numbers; {}", file.path(),
           piece.slice.dataset(), name_of(info.type), fmt::join(info.shape, ", "), piece.slice.end - piece.slice.begin,
           help);
    const auto read_as = [&](auto stored) {
      using Stored = decltype(stored);
      const auto values =
          file.read_slab<Stored>(piece.slice.dataset(), first - piece.slice.begin, last - piece.slice.begin);
      const View part = out.reshape({out.elements()}).rows(first - begin, last - begin);
      kernels::update_on_host(part, [&](const View& host) {
        kernels::with_real(host.type(), [&](auto wanted) {
          std::transform(values.begin(), values.end(), host.as<decltype(wanted)>(),
                         [](Stored v) { return decltype(wanted)(v); });
        });
      });
    };
    info.type == Hdf5Type::f32 ? read_as(float{}) : read_as(double{});
  }
}

std::string newest_checkpoint(const std::string& run_folder) {
  const std::string parent = join(run_folder, "checkpoints");
  std::error_code ignored;
  if (!fs::is_directory(parent, ignored)) return "";
  for (const auto& [step, name] : step_folders(parent)) {
    const std::string folder = join(parent, name);
    try {
      const std::int64_t found = Checkpoint::open(folder).header().step;
      if (found == step) return folder;
      fail(ExitCode::bad_data, "{}: its manifest is of step {}", folder, found);
    } catch (const Error& error) { std::fprintf(stderr, "capstan: passed over a checkpoint: %s\n", error.what()); }
  }
  return "";
}

std::string resolve_model_folder(const std::string& path) {
  std::error_code ignored;
  if (fs::exists(join(path, manifest_name), ignored)) return path;
  if (fs::is_directory(join(path, "checkpoints"), ignored)) {
    const std::string newest = newest_checkpoint(path);
    if (newest.empty())
      fail(ExitCode::bad_data, "{}: the run has no checkpoint that can be used; train it first, or name another", path);
    return newest;
  }
  if (!fs::exists(path, ignored))
    fail(ExitCode::io, "{}: no such folder; name a model folder, a checkpoint or a run", path);
  const bool foreign = fs::exists(join(path, "config.json"), ignored);
  fail(ExitCode::bad_data, "{}: holds no {}{}", path, manifest_name,
       foreign ? "; turn this Hugging Face folder into a model with capstan import"
               : "; name a model folder, a checkpoint or a run");
}

namespace {

/// Names and shapes against the checkpoint; parameters need not be allocated. Returns the allowed ones that it lacks.
std::vector<std::string> compare_tensors(Parameters& parameters, const Checkpoint& checkpoint) {
  std::map<std::string, const Checkpoint::TensorInfo*> tensors;
  for (const auto& tensor : checkpoint.tensors()) tensors[tensor.name] = &tensor;
  std::vector<std::string> missing;
  for (const Parameter& p : parameters.all()) {
    const auto found = tensors.find(p.name);
    if (found == tensors.end() && !is_of_position(p.name) && !is_of_adapter(p.name))
      fail(ExitCode::bad_data, "{}: tensor '{}' {} is missing; the checkpoint is of another model", checkpoint.folder(),
           p.name, p.shape.text());
    if (found == tensors.end()) {
      missing.push_back(p.name);
      continue;
    }
    if (found->second->shape != extents(p.shape))
      fail(ExitCode::bad_data, "{}: tensor '{}' is [{}], this model's is {}; the checkpoint is of another model",
           checkpoint.folder(), p.name, fmt::join(found->second->shape, ", "), p.shape.text());
  }
  for (const auto& tensor : checkpoint.tensors())
    if (!parameters.find(tensor.name))
      fail(ExitCode::bad_data, "{}: tensor '{}' is not in this model; the checkpoint is of another model or encoding",
           checkpoint.folder(), tensor.name);
  return missing;
}

}  // namespace

std::vector<std::string> load_values(Parameters& parameters, const Checkpoint& checkpoint) {
  const std::vector<std::string> missing = compare_tensors(parameters, checkpoint);
  for (const Parameter& p : parameters.all())
    if (std::find(missing.begin(), missing.end(), p.name) == missing.end())
      checkpoint.read("value", p.name, 0, p.shape.elements(), p.value);
  return missing;
}

LoadedModel load_model(const std::string& path, Device device, DType type, const PositionConfig* position) {
  const Checkpoint checkpoint = Checkpoint::open(resolve_model_folder(path));
  LoadedModel loaded;
  loaded.header = checkpoint.header();
  loaded.extras = checkpoint.extras();
  if (position) loaded.header.position = *position;
  resolve_sizes(loaded.header.model, loaded.header.position);
  loaded.model = std::make_unique<Model>(loaded.header.model, loaded.header.position);
  Parameters& parameters = loaded.model->parameters();
  compare_tensors(parameters, checkpoint);  // before memory is taken for sizes that the file does not have
  parameters.allocate(device, kernels::wide(type), false, [](const std::string&) { return false; });
  parameters.initialise(1, loaded.header.model.init_std);
  load_values(parameters, checkpoint);
  if (type == DType::bf16) parameters.narrow();
  if (loaded.header.tokenizer.empty()) return loaded;
  const std::string& name = loaded.header.tokenizer;
  loaded.tokenizer =
      make_tokenizer(is_tokenizer_file(name) ? join(checkpoint.folder(), name) : name, loaded.header.end_tokens);
  if (loaded.tokenizer->vocabulary() > loaded.header.model.vocabulary)
    fail(ExitCode::bad_data, "{}: the tokenizer has {} tokens, the model {}; {}", checkpoint.folder(),
         loaded.tokenizer->vocabulary(), loaded.header.model.vocabulary, help);
  return loaded;
}

}  // namespace capstan::framework
