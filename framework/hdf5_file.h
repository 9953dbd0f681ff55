#pragma once
// HDF5 files: named 1-D and 2-D arrays and a few attributes, all in the root group. A thin, safe layer over the C library:
//
// - The serial library is not thread safe and ranks may be threads: one process-wide lock guards every call.
// - Every failure is an Error with file and dataset and the library's own innermost reason; nothing is printed.
// - A file from outside cannot make this process open another file or load code: plug-ins are off; links, external
//   storage, virtual datasets, filters and variable-length data are refused.
// - A dataset's claimed size must be backed by storage in the file, so a caller may allocate what dataset() says.
// - The structure carries checksums (format of HDF5 1.8), which find a flipped bit; the data has none here.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace capstan::framework {

enum class Hdf5Type : std::uint8_t { u8, u16, u32, i64, f32, f64 };

template <class T> struct Hdf5TypeOf;
template <> struct Hdf5TypeOf<std::uint8_t> { static constexpr Hdf5Type value = Hdf5Type::u8; };
template <> struct Hdf5TypeOf<std::uint16_t> { static constexpr Hdf5Type value = Hdf5Type::u16; };
template <> struct Hdf5TypeOf<std::uint32_t> { static constexpr Hdf5Type value = Hdf5Type::u32; };
template <> struct Hdf5TypeOf<std::int64_t> { static constexpr Hdf5Type value = Hdf5Type::i64; };
template <> struct Hdf5TypeOf<float> { static constexpr Hdf5Type value = Hdf5Type::f32; };
template <> struct Hdf5TypeOf<double> { static constexpr Hdf5Type value = Hdf5Type::f64; };

std::string name_of(Hdf5Type type);
std::int64_t size_of(Hdf5Type type);  ///< bytes

struct Hdf5Dataset {
  Hdf5Type type = Hdf5Type::u8;
  std::vector<std::int64_t> shape;  ///< one or two extents
  std::int64_t elements() const;
};

class Hdf5File {
 public:
  static Hdf5File create(const std::string& path);  ///< replaces; error: io
  static Hdf5File open(const std::string& path);    ///< to read; errors: io (missing), bad_data (not HDF5, truncated)
  Hdf5File(Hdf5File&&) noexcept;
  Hdf5File& operator=(Hdf5File&&) noexcept;
  ~Hdf5File();  ///< closes, but cannot report: a writer calls close()

  const std::string& path() const;
  /// Writes out, closes and fsyncs a created file. Nothing else may be called afterwards. Error: io.
  void close();

  std::vector<std::string> datasets() const;        ///< names, sorted
  bool has_dataset(const std::string& name) const;  ///< of any kind; dataset() checks it
  Hdf5Dataset dataset(const std::string& name) const;

  /// Creates dataset `name` (a name without '/') and writes all of it. Error: io.
  void write(const std::string& name, Hdf5Type type, const std::vector<std::int64_t>& shape, const void* data);
  /// Reads all of `name` into data[elements]. The stored type must be `type`. Error: bad_data.
  void read(const std::string& name, Hdf5Type type, void* data) const;
  /// Reads elements [begin, end) of the 1-D dataset `name` into data[end - begin].
  void read_slab(const std::string& name, Hdf5Type type, std::int64_t begin, std::int64_t end, void* data) const;

  template <class T> void write(const std::string& name, const std::vector<T>& values) {
    write(name, Hdf5TypeOf<T>::value, {std::int64_t(values.size())}, values.data());
  }
  template <class T> std::vector<T> read(const std::string& name) const {
    std::vector<T> values(std::size_t(dataset(name).elements()));
    read(name, Hdf5TypeOf<T>::value, values.data());
    return values;
  }
  template <class T> std::vector<T> read_slab(const std::string& name, std::int64_t begin, std::int64_t end) const {
    std::vector<T> values(std::size_t(end > begin ? end - begin : 0));
    read_slab(name, Hdf5TypeOf<T>::value, begin, end, values.data());
    return values;
  }

  // Attributes of the root group. A text has at most 64,000 bytes and no NUL; a longer one belongs in a u8 dataset.
  void set_text(const std::string& name, const std::string& value);
  void set_integer(const std::string& name, std::int64_t value);
  void set_number(const std::string& name, double value);
  bool has_attribute(const std::string& name) const;
  std::string text(const std::string& name) const;
  std::int64_t integer(const std::string& name) const;
  double number(const std::string& name) const;

 private:
  struct State;
  explicit Hdf5File(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace capstan::framework
