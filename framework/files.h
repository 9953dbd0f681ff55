#pragma once
// Small file helpers with the errors of this program, and the write-then-rename rule. Also the checks that every text
// from outside passes before it is used or shown.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace capstan::framework {

/// Errors: io; bad_data over the limit.
std::string read_file(const std::string& path, std::int64_t limit = std::int64_t(1) << 40);
/// Makes the folder if need be, calls write(temporary path) in it, fsyncs the file, renames it to `path`, fsyncs the folder; removes
/// the temporary on failure. So `path` is either as it was before or complete.
void write_atomically(const std::string& path, const std::function<void(const std::string& temporary)>& write);
void write_text_atomically(const std::string& path, const std::string& text);
void fsync_path(const std::string& path);  ///< file or folder
std::uint64_t xxh3_of_file(const std::string& path);
std::uint64_t xxh3_of(const void* data, std::size_t bytes);
std::string hex(std::uint64_t value);                           ///< 16 digits
std::int64_t free_bytes(const std::string& folder);             ///< of the file system that holds the folder
std::vector<std::string> list_folder(const std::string& path);  ///< names, sorted

/// A regular file opened for reading at offsets. A pipe, device or folder is refused, so that opening never waits.
class InputFile {
 public:
  explicit InputFile(const std::string& path);  ///< error: io
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();
  std::int64_t size() const { return size_; }  ///< when it was opened
  /// Up to `bytes` bytes at `offset`; fewer only at the end of the file. Error: io.
  std::size_t read_some(std::int64_t offset, void* data, std::size_t bytes) const;
  /// Exactly `bytes` bytes. Errors: io; bad_data if the file has become shorter.
  void read(std::int64_t offset, void* data, std::size_t bytes) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  std::int64_t size_ = 0;
};

/// A new file, written front to back. Error: io (a full disk says how many bytes are free).
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();
  void write(const void* data, std::size_t bytes);
  void close();  ///< reports what a destructor cannot

 private:
  std::string path_;
  int descriptor_ = -1;
};

/// xxh3 over several pieces of memory, as if they were one.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;
  void add(const void* data, std::size_t bytes);
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Bytes of the UTF-8 character at text[at] (1 to 4); 0 if there is none (overlong, surrogate, cut off, above
/// U+10FFFF).
int utf8_character(std::string_view text, std::size_t at);
bool is_utf8(std::string_view text);
/// The text on one line for a message: control characters and broken UTF-8 become escapes, more than `limit` characters
/// "…".
std::string printable(std::string_view text, std::size_t limit = 80);
/// True for a name that stays in its folder: no separator, no "." or "..", no control characters, not empty.
bool is_plain_name(std::string_view name);

/// Checks that `text` is one strict JSON value: well formed, UTF-8, no key twice in an object, at most `depth` levels.
/// The usual parsers keep the last of two equal keys, so two programs can see two different files. `name` begins the
/// error line (bad_data). Afterwards a plain parser can read the text.
void check_json(const std::string& text, const std::string& name, int depth = 64);

}  // namespace capstan::framework
