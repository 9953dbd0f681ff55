#include "framework/hdf5_file.h"

#include <hdf5.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "framework/files.h"
#include "kernels/check.h"

namespace capstan::framework {
namespace {

constexpr std::size_t text_limit = 64'000;                     // an attribute of the compact kind has less than 64 KiB
constexpr std::int64_t chunk_limit = std::int64_t(256) << 20;  // bytes; the library holds whole chunks in memory

/// A setting of the library that only a defect of ours can make fail.
void must(herr_t result) { CAPSTAN_CHECK(result >= 0, "HDF5 refuses a setting"); }

/// Held during every call of the library.
class Lock {
 public:
  Lock() : guard_(mutex()) {
    // The library's exit handler crashes over a file that a full disk kept from being closed.
    static const bool no_exit_handler = H5dont_atexit() >= 0;
    static_cast<void>(no_exit_handler);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // nothing is printed; a thread-safe library keeps this per thread
    must(H5PLset_loading_state(0));               // no filter plug-ins: shared objects found through the environment
  }

 private:
  static std::mutex& mutex() {
    static std::mutex the_mutex;
    return the_mutex;
  }
  std::lock_guard<std::mutex> guard_;
};

/// An identifier of the library with the function that gives it back.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  operator hid_t() const { return id_; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

herr_t keep_first(unsigned depth, const H5E_error2_t* error, void* text) {
  if (depth == 0 && error->desc != nullptr) *static_cast<std::string*>(text) = error->desc;
  return 0;
}

/// The innermost entry of the library's error stack: what was found wrong, not which calls led there. A failed call of
/// the system stands there with time, addresses and more; what the system said is enough.
std::string reason() {
  std::string text = "no reason given";
  if (H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &text) < 0) return "no reason given";
  constexpr std::string_view mark = "error message = '";
  if (const auto at = text.find(mark); at != std::string::npos) {
    text.erase(0, at + mark.size());
    text.erase(std::min(text.find('\''), text.size()));
  }
  return printable(text, 200);
}

hid_t file_type(Hdf5Type type) {
  switch (type) {
    case Hdf5Type::u8: return H5T_STD_U8LE;
    case Hdf5Type::u16: return H5T_STD_U16LE;
    case Hdf5Type::u32: return H5T_STD_U32LE;
    case Hdf5Type::i64: return H5T_STD_I64LE;
    case Hdf5Type::f32: return H5T_IEEE_F32LE;
    case Hdf5Type::f64: return H5T_IEEE_F64LE;
  }
  return -1;
}

constexpr Hdf5Type all_types[] = {Hdf5Type::u8,  Hdf5Type::u16, Hdf5Type::u32,
                                  Hdf5Type::i64, Hdf5Type::f32, Hdf5Type::f64};

/// Where an error happened: "PATH: dataset 'NAME'".
std::string at(const std::string& path, const std::string& name) {
  return fmt::format("{}: dataset '{}'", path, printable(name));
}

void check_name(const std::string& path, const std::string& name) {
  CAPSTAN_CHECK(is_plain_name(name), "{}: dataset name '{}'", path, printable(name));
}

}  // namespace

std::string name_of(Hdf5Type type) {
  static const char* const names[] = {"u8", "u16", "u32", "i64", "f32", "f64"};
  return names[std::size_t(type)];
}

std::int64_t size_of(Hdf5Type type) {
  static constexpr std::int64_t sizes[] = {1, 2, 4, 8, 4, 8};
  return sizes[std::size_t(type)];
}

std::int64_t Hdf5Dataset::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;  // checked when the dataset was opened
  return product;
}

struct Hdf5File::State {
  std::string path;
  hid_t file = -1;
  bool created = false;
  std::int64_t file_bytes = 0;  // when it was opened

  ~State() {
    if (file < 0) return;
    const Lock lock;
    if (H5Fclose(file) < 0) return;  // a reader lost nothing; a writer was closed, and checked, before
  }
};

Hdf5File::Hdf5File(std::unique_ptr<State> state) : state_(std::move(state)) {}
Hdf5File::Hdf5File(Hdf5File&&) noexcept = default;
Hdf5File& Hdf5File::operator=(Hdf5File&&) noexcept = default;
Hdf5File::~Hdf5File() = default;

const std::string& Hdf5File::path() const { return state_->path; }

namespace {

/// Access properties of every file.
hid_t access_properties() {
  const hid_t properties = H5Pcreate(H5P_FILE_ACCESS);
  must(H5Pset_fclose_degree(properties, H5F_CLOSE_STRONG));
  must(H5Pset_libver_bounds(properties, H5F_LIBVER_V18, H5F_LIBVER_LATEST));
  // Locks fail on NFS and Lustre, and nothing needs them: a file is written under a temporary name and never changed.
  must(H5Pset_file_locking(properties, 0, 1));
  return properties;
}

/// Creation properties of a file or a dataset: without dates, so that equal content makes equal files.
hid_t creation_properties(hid_t kind) {
  const hid_t properties = H5Pcreate(kind);
  must(H5Pset_obj_track_times(properties, false));
  return properties;
}

}  // namespace

Hdf5File Hdf5File::create(const std::string& path) {
  OutputFile(path).close();  // the system's own error, if the file cannot be made
  auto state = std::make_unique<State>();
  state->path = path;
  state->created = true;
  const Lock lock;
  const Handle access(access_properties(), H5Pclose);
  const Handle creation(creation_properties(H5P_FILE_CREATE), H5Pclose);
  state->file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation, access);
  if (state->file < 0) fail(ExitCode::io, "{}: cannot create as HDF5: {}", path, reason());
  return Hdf5File(std::move(state));
}

Hdf5File Hdf5File::open(const std::string& path) {
  auto state = std::make_unique<State>();
  state->path = path;
  state->file_bytes = InputFile(path).size();  // also refuses what is missing or not a regular file
  if (state->file_bytes == 0)
    fail(ExitCode::bad_data, "{}: empty; an HDF5 file was expected, get or make it again", path);
  const Lock lock;
  const Handle access(access_properties(), H5Pclose);
  state->file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access);
  if (state->file < 0) {
    fail(ExitCode::bad_data, "{}: not an HDF5 file, or truncated ({}); get or make it again", path, reason());
  }
  return Hdf5File(std::move(state));
}

void Hdf5File::close() {
  CAPSTAN_CHECK(state_->file >= 0, "{} is closed already", state_->path);
  {
    const Lock lock;
    const bool flushed = !state_->created || H5Fflush(state_->file, H5F_SCOPE_GLOBAL) >= 0;
    const std::string why = flushed ? "" : reason();
    const hid_t file = std::exchange(state_->file, -1);
    const bool closed = H5Fclose(file) >= 0;
    if (!flushed || !closed) {
      fail(ExitCode::io, "{}: cannot finish writing: {}; is the disk full?", state_->path, flushed ? reason() : why);
    }
  }
  if (state_->created) fsync_path(state_->path);
}

std::vector<std::string> Hdf5File::datasets() const {
  const Lock lock;
  H5G_info_t group;
  if (H5Gget_info(state_->file, &group) < 0) fail(ExitCode::bad_data, "{}: cannot list: {}", state_->path, reason());
  std::vector<std::string> names;
  for (hsize_t i = 0; i < group.nlinks; ++i) {
    char name[1024] = {};
    const ssize_t length =
        H5Lget_name_by_idx(state_->file, ".", H5_INDEX_NAME, H5_ITER_INC, i, name, sizeof name, H5P_DEFAULT);
    if (length < 0 || std::size_t(length) >= sizeof name) {
      fail(ExitCode::bad_data, "{}: entry {} has no readable name: {}", state_->path, i,
           length < 0 ? reason() : "too long");
    }
    names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool Hdf5File::has_dataset(const std::string& name) const {
  check_name(state_->path, name);
  const Lock lock;
  return H5Lexists(state_->file, name.c_str(), H5P_DEFAULT) > 0;
}

namespace {

/// Storage that a file may have. Everything else could reach outside it or run code.
void check_storage(hid_t dataset, const std::string& where) {
  const Handle properties(H5Dget_create_plist(dataset), H5Pclose);
  const H5D_layout_t layout = properties < 0 ? H5D_LAYOUT_ERROR : H5Pget_layout(properties);
  if (layout != H5D_COMPACT && layout != H5D_CONTIGUOUS && layout != H5D_CHUNKED) {
    fail(ExitCode::bad_data, "{}: its layout is virtual or unreadable; allowed are compact, contiguous, chunked",
         where);
  }
  const bool external = layout == H5D_CONTIGUOUS && H5Pget_external_count(properties) != 0;
  if (external) fail(ExitCode::bad_data, "{}: its data lies in another file; allowed is data in this file", where);
  if (H5Pget_nfilters(properties) != 0) {
    fail(ExitCode::bad_data, "{}: it is compressed or filtered; rewrite it without filters", where);
  }
  if (layout != H5D_CHUNKED) return;
  hsize_t chunk[H5S_MAX_RANK] = {};
  const int rank = H5Pget_chunk(properties, H5S_MAX_RANK, chunk);
  std::int64_t elements = 1;
  bool fits = rank > 0;
  for (int i = 0; fits && i < rank; ++i) {
    fits = chunk[i] <= hsize_t(chunk_limit) && !__builtin_mul_overflow(elements, std::int64_t(chunk[i]), &elements);
  }
  if (!fits || elements > chunk_limit) fail(ExitCode::bad_data, "{}: chunks larger than {} bytes", where, chunk_limit);
}

Hdf5Type stored_type(hid_t dataset, const std::string& where) {
  const Handle type(H5Dget_type(dataset), H5Tclose);
  for (const Hdf5Type known : all_types) {
    if (type >= 0 && H5Tequal(type, file_type(known)) > 0) return known;
  }
  fail(ExitCode::bad_data, "{}: its type is none of u8, u16, u32, i64, f32, f64 (little endian)", where);
}

std::vector<std::int64_t> stored_shape(hid_t dataset, const std::string& where) {
  const Handle space(H5Dget_space(dataset), H5Sclose);
  const int rank = space < 0 ? -1 : H5Sget_simple_extent_ndims(space);
  if (rank != 1 && rank != 2) fail(ExitCode::bad_data, "{}: it has {} dimensions; allowed are 1 and 2", where, rank);
  hsize_t extents[2] = {};
  if (H5Sget_simple_extent_dims(space, extents, nullptr) < 0) fail(ExitCode::bad_data, "{}: {}", where, reason());
  return {extents, extents + rank};
}

/// Compares the claimed size with the storage that the file really has for it.
void check_backed(hid_t dataset, const Hdf5Dataset& info, std::int64_t file_bytes, const std::string& where) {
  std::int64_t bytes = size_of(info.type);
  bool empty = false, sane = true;
  for (const std::int64_t extent : info.shape) {
    sane = sane && extent >= 0;
    empty = empty || extent == 0;
    if (extent != 0) sane = sane && !__builtin_mul_overflow(bytes, extent, &bytes);
  }
  if (sane && empty) return;
  const hsize_t stored = H5Dget_storage_size(dataset);
  if (!sane || stored < hsize_t(bytes) || stored > hsize_t(file_bytes)) {
    fail(ExitCode::bad_data,
         "{}: shape [{}] of {} is not backed by its {} stored bytes (file of {}); get or make it again", where,
         fmt::join(info.shape, ", "), name_of(info.type), stored, file_bytes);
  }
}

struct OpenDataset {
  std::unique_ptr<Handle> handle;
  Hdf5Dataset info;
};

OpenDataset open_dataset(hid_t file, std::int64_t file_bytes, const std::string& path, const std::string& name) {
  check_name(path, name);
  const std::string where = at(path, name);
  H5L_info_t link;
  if (H5Lexists(file, name.c_str(), H5P_DEFAULT) <= 0 || H5Lget_info(file, name.c_str(), &link, H5P_DEFAULT) < 0) {
    fail(ExitCode::bad_data, "{}: missing; is it a file of this kind?", where);
  }
  if (link.type != H5L_TYPE_HARD) fail(ExitCode::bad_data, "{}: is a link; links are not followed", where);
  OpenDataset open;
  open.handle = std::make_unique<Handle>(H5Dopen2(file, name.c_str(), H5P_DEFAULT), H5Dclose);
  if (*open.handle < 0) fail(ExitCode::bad_data, "{}: cannot open: {}; get or make it again", where, reason());
  check_storage(*open.handle, where);
  open.info.type = stored_type(*open.handle, where);
  open.info.shape = stored_shape(*open.handle, where);
  check_backed(*open.handle, open.info, file_bytes, where);
  return open;
}

/// As open_dataset, for a caller who expects `type`.
OpenDataset open_typed(hid_t file, std::int64_t file_bytes, const std::string& path, const std::string& name,
                       Hdf5Type type) {
  OpenDataset open = open_dataset(file, file_bytes, path, name);
  if (open.info.type != type) {
    fail(ExitCode::bad_data, "{}: holds {}, {} was expected", at(path, name), name_of(open.info.type), name_of(type));
  }
  return open;
}

}  // namespace

Hdf5Dataset Hdf5File::dataset(const std::string& name) const {
  const Lock lock;
  return open_dataset(state_->file, state_->file_bytes, state_->path, name).info;
}

void Hdf5File::write(const std::string& name, Hdf5Type type, const std::vector<std::int64_t>& shape, const void* data) {
  check_name(state_->path, name);
  CAPSTAN_CHECK(state_->created && state_->file >= 0, "{} is not open for writing", state_->path);
  CAPSTAN_CHECK(shape.size() == 1 || shape.size() == 2, "dataset '{}' has {} dimensions", name, shape.size());
  CAPSTAN_CHECK(*std::min_element(shape.begin(), shape.end()) >= 0, "dataset '{}': [{}]", name, fmt::join(shape, ", "));
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  const Lock lock;
  const Handle space(H5Screate_simple(int(extents.size()), extents.data(), nullptr), H5Sclose);
  const Handle creation(creation_properties(H5P_DATASET_CREATE), H5Pclose);
  const Handle dataset(
      H5Dcreate2(state_->file, name.c_str(), file_type(type), space, H5P_DEFAULT, creation, H5P_DEFAULT), H5Dclose);
  const bool empty = std::count(shape.begin(), shape.end(), 0) > 0;
  const bool written =
      dataset >= 0 && (empty || H5Dwrite(dataset, file_type(type), H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
  if (!written) fail(ExitCode::io, "{}: cannot write: {}; is the disk full?", at(state_->path, name), reason());
}

void Hdf5File::read(const std::string& name, Hdf5Type type, void* data) const {
  const Lock lock;
  const OpenDataset open = open_typed(state_->file, state_->file_bytes, state_->path, name, type);
  if (open.info.elements() == 0) return;
  if (H5Dread(*open.handle, file_type(type), H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0) {
    fail(ExitCode::bad_data, "{}: cannot read: {}; get or make it again", at(state_->path, name), reason());
  }
}

void Hdf5File::read_slab(const std::string& name, Hdf5Type type, std::int64_t begin, std::int64_t end,
                         void* data) const {
  const Lock lock;
  const OpenDataset open = open_typed(state_->file, state_->file_bytes, state_->path, name, type);
  CAPSTAN_CHECK(open.info.shape.size() == 1 && 0 <= begin && begin <= end && end <= open.info.shape[0],
                "{}: [{}, {}) of [{}]", at(state_->path, name), begin, end, fmt::join(open.info.shape, ", "));
  if (begin == end) return;
  const hsize_t start = hsize_t(begin), count = hsize_t(end - begin);
  const Handle memory(H5Screate_simple(1, &count, nullptr), H5Sclose);
  const Handle space(H5Dget_space(*open.handle), H5Sclose);
  if (memory < 0 || H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, nullptr, &count, nullptr) < 0 ||
      H5Dread(*open.handle, file_type(type), memory, space, H5P_DEFAULT, data) < 0) {
    fail(ExitCode::bad_data, "{}: cannot read [{}, {}): {}; get or make it again", at(state_->path, name), begin, end,
         reason());
  }
}

namespace {

void set_attribute(hid_t file, const std::string& path, const std::string& name, hid_t type, const void* value) {
  const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Handle attribute(H5Acreate2(file, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  if (attribute < 0 || H5Awrite(attribute, type, value) < 0) {
    fail(ExitCode::io, "{}: cannot write attribute '{}': {}", path, name, reason());
  }
}

/// Opens attribute `name` and checks that it is one value of class `expected`; the handle of its type goes to `type`.
std::unique_ptr<Handle> open_attribute(hid_t file, const std::string& path, const std::string& name,
                                       H5T_class_t expected, std::unique_ptr<Handle>& type) {
  if (H5Aexists(file, name.c_str()) <= 0) {
    fail(ExitCode::bad_data, "{}: attribute '{}' is missing; is it a file of this kind?", path, printable(name));
  }
  auto attribute = std::make_unique<Handle>(H5Aopen(file, name.c_str(), H5P_DEFAULT), H5Aclose);
  type = std::make_unique<Handle>(*attribute < 0 ? -1 : H5Aget_type(*attribute), H5Tclose);
  const Handle space(*attribute < 0 ? -1 : H5Aget_space(*attribute), H5Sclose);
  const bool fits =
      *type >= 0 && space >= 0 && H5Tget_class(*type) == expected && H5Sget_simple_extent_npoints(space) == 1;
  if (!fits) {
    fail(ExitCode::bad_data, "{}: attribute '{}' is not one {}", path, printable(name),
         expected == H5T_STRING    ? "text"
         : expected == H5T_INTEGER ? "integer"
                                   : "number");
  }
  return attribute;
}

void read_scalar(hid_t file, const std::string& path, const std::string& name, H5T_class_t expected, hid_t memory,
                 void* value) {
  std::unique_ptr<Handle> type;
  const auto attribute = open_attribute(file, path, name, expected, type);
  if (H5Tequal(*type, memory) <= 0 || H5Aread(*attribute, memory, value) < 0) {
    fail(ExitCode::bad_data, "{}: attribute '{}' is not a 64-bit value, or unreadable", path, printable(name));
  }
}

}  // namespace

void Hdf5File::set_text(const std::string& name, const std::string& value) {
  CAPSTAN_CHECK(value.size() <= text_limit && value.find('\0') == std::string::npos, "{}: attribute '{}' of {} bytes",
                state_->path, name, value.size());
  const Lock lock;
  const Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  must(H5Tset_size(type,
                   std::max<std::size_t>(value.size(), 1)));  // the library has no empty text: one NUL stands for it
  must(H5Tset_strpad(type, H5T_STR_NULLPAD));
  must(H5Tset_cset(type, H5T_CSET_UTF8));
  set_attribute(state_->file, state_->path, name, type, value.c_str());
}

void Hdf5File::set_integer(const std::string& name, std::int64_t value) {
  const Lock lock;
  set_attribute(state_->file, state_->path, name, H5T_STD_I64LE, &value);
}

void Hdf5File::set_number(const std::string& name, double value) {
  const Lock lock;
  set_attribute(state_->file, state_->path, name, H5T_IEEE_F64LE, &value);
}

bool Hdf5File::has_attribute(const std::string& name) const {
  const Lock lock;
  return H5Aexists(state_->file, name.c_str()) > 0;
}

std::string Hdf5File::text(const std::string& name) const {
  const Lock lock;
  std::unique_ptr<Handle> type;
  const auto attribute = open_attribute(state_->file, state_->path, name, H5T_STRING, type);
  const std::size_t bytes = H5Tget_size(*type);
  if (H5Tis_variable_str(*type) != 0 || bytes > text_limit) {
    fail(ExitCode::bad_data, "{}: attribute '{}' is not a text of fixed length up to {} bytes", state_->path,
         printable(name), text_limit);
  }
  std::string value(bytes, '\0');
  if (H5Aread(*attribute, *type, value.data()) < 0) {
    fail(ExitCode::bad_data, "{}: cannot read attribute '{}': {}", state_->path, printable(name), reason());
  }
  value.resize(std::strlen(value.c_str()));
  return value;
}

std::int64_t Hdf5File::integer(const std::string& name) const {
  const Lock lock;
  std::int64_t value = 0;
  read_scalar(state_->file, state_->path, name, H5T_INTEGER, H5T_STD_I64LE, &value);
  return value;
}

double Hdf5File::number(const std::string& name) const {
  const Lock lock;
  double value = 0;
  read_scalar(state_->file, state_->path, name, H5T_FLOAT, H5T_IEEE_F64LE, &value);
  return value;
}

}  // namespace capstan::framework
