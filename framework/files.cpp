#include "framework/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "framework/json.h"
#include "kernels/check.h"

namespace capstan::framework {
namespace {

/// The system's words for `error`, with the help that fits it.
std::string reason(int error) {
  std::string text = std::strerror(error);
  if (error == ENOENT) text += "; check the path";
  if (error == EACCES || error == EPERM || error == EROFS) text += "; check who may read and write it";
  if (error == ENOSPC || error == EDQUOT) text += "; free some space or choose another folder";
  return text;
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

/// Unique among the processes and threads of a machine; the pid is for whoever finds one after a kill.
std::string temporary_name(const std::string& path) {
  static std::atomic<std::uint64_t> counter{0};
  const std::filesystem::path full(path);
  const std::string name = fmt::format(".{}.tmp-{}-{}", full.filename().string(), ::getpid(), counter++);
  return (full.parent_path() / name).string();
}

/// Nobody has asked for the temporary file: what happened to it happened to `path`.
std::string with_name(std::string text, const std::string& temporary, const std::string& path) {
  for (std::size_t at = 0; (at = text.find(temporary, at)) != std::string::npos; at += path.size())
    text.replace(at, temporary.size(), path);
  return text;
}

}  // namespace

InputFile::InputFile(const std::string& path) : path_(path) {
  // O_NONBLOCK: opening a pipe without a writer would wait for ever. It changes nothing for a regular file.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) fail(ExitCode::io, "{}: cannot open: {}", path, reason(errno));
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    fail(ExitCode::io, "{}: not a regular file; name a file", path);
  }
  size_ = status.st_size;
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(other.descriptor_), size_(other.size_) {
  other.descriptor_ = -1;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::size_t InputFile::read_some(std::int64_t offset, void* data, std::size_t bytes) const {
  std::size_t done = 0;
  while (done < bytes) {
    const std::size_t piece = std::min(bytes - done, std::size_t(1) << 30);
    const ssize_t got = ::pread(descriptor_, static_cast<char*>(data) + done, piece, offset + std::int64_t(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      fail(ExitCode::io, "{}: cannot read at byte {}: {}", path_, offset + std::int64_t(done), reason(errno));
    if (got == 0) break;
    done += std::size_t(got);
  }
  return done;
}

void InputFile::read(std::int64_t offset, void* data, std::size_t bytes) const {
  const std::size_t got = read_some(offset, data, bytes);
  if (got != bytes) {
    fail(ExitCode::bad_data, "{}: ends at byte {}, {} bytes were expected; get the file again", path_,
         offset + std::int64_t(got), offset + std::int64_t(bytes));
  }
}

OutputFile::OutputFile(const std::string& path) : path_(path) {
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail(ExitCode::io, "{}: cannot create: {}", path, reason(errno));
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::write(const void* data, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    const std::size_t piece = std::min(bytes - done, std::size_t(1) << 30);
    const ssize_t put = ::write(descriptor_, static_cast<const char*>(data) + done, piece);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) {
      const int error = errno;
      fail(ExitCode::io, "{}: cannot write {} bytes ({} free): {}", path_, bytes, free_bytes(folder_of(path_)),
           reason(error));
    }
    done += std::size_t(put);
  }
}

void OutputFile::close() {
  const int descriptor = std::exchange(descriptor_, -1);
  if (descriptor >= 0 && ::close(descriptor) != 0) fail(ExitCode::io, "{}: cannot close: {}", path_, reason(errno));
}

std::string read_file(const std::string& path, std::int64_t limit) {
  const InputFile file(path);
  if (file.size() > limit) {
    fail(ExitCode::bad_data, "{}: {} bytes, at most {} are read; is it the right file?", path, file.size(), limit);
  }
  std::string text(std::size_t(file.size()), '\0');
  text.resize(file.read_some(0, text.data(), text.size()));
  return text;
}

void write_atomically(const std::string& path, const std::function<void(const std::string& temporary)>& write) {
  std::error_code ignored;  // if the folder cannot be made, opening the file says so
  std::filesystem::create_directories(folder_of(path), ignored);
  const std::string temporary = temporary_name(path);
  try {
    write(temporary);
    fsync_path(temporary);
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      fail(ExitCode::io, "{}: cannot rename the finished file to this name: {}", path, reason(errno));
    }
  } catch (const Error& error) {
    ::unlink(temporary.c_str());
    throw Error(error.code(), with_name(error.what(), temporary, path));
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  fsync_path(folder_of(path));  // without it a power loss can forget the rename
}

void write_text_atomically(const std::string& path, const std::string& text) {
  write_atomically(path, [&](const std::string& temporary) {
    OutputFile file(temporary);
    file.write(text.data(), text.size());
    file.close();
  });
}

void fsync_path(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(ExitCode::io, "{}: cannot open: {}", path, reason(errno));
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  if (result != 0) fail(ExitCode::io, "{}: cannot fsync: {}", path, reason(error));
}

std::int64_t free_bytes(const std::string& folder) {
  struct statvfs status {};
  if (::statvfs(folder.c_str(), &status) != 0)
    fail(ExitCode::io, "{}: cannot ask its space: {}", folder, reason(errno));
  return std::int64_t(status.f_bavail) * std::int64_t(status.f_frsize);
}

std::vector<std::string> list_folder(const std::string& path) {
  DIR* folder = ::opendir(path.c_str());
  if (folder == nullptr) fail(ExitCode::io, "{}: cannot list: {}", path, reason(errno));
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  ::closedir(folder);
  std::sort(names.begin(), names.end());
  return names;
}

struct Hasher::State {
  XXH3_state_t* xxh3 = nullptr;
};

Hasher::Hasher() : state_(std::make_unique<State>()) {
  state_->xxh3 = XXH3_createState();
  CAPSTAN_CHECK(state_->xxh3 != nullptr && XXH3_64bits_reset(state_->xxh3) == XXH_OK, "no memory for a hash");
}

Hasher::~Hasher() { XXH3_freeState(state_->xxh3); }

void Hasher::add(const void* data, std::size_t bytes) {
  if (bytes > 0) XXH3_64bits_update(state_->xxh3, data, bytes);
}

std::uint64_t Hasher::value() const { return XXH3_64bits_digest(state_->xxh3); }

std::uint64_t xxh3_of(const void* data, std::size_t bytes) { return XXH3_64bits(data, bytes); }

std::uint64_t xxh3_of_file(const std::string& path) {
  const InputFile file(path);
  Hasher hasher;
  std::vector<char> buffer(std::size_t(1) << 20);
  std::int64_t offset = 0;
  while (const std::size_t got = file.read_some(offset, buffer.data(), buffer.size())) {
    hasher.add(buffer.data(), got);
    offset += std::int64_t(got);
  }
  return hasher.value();
}

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

int utf8_character(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u; };
  const unsigned first = byte(0);
  if (at >= text.size()) return 0;
  if (first < 0x80) return 1;
  int length = 0;
  if (first >= 0xc2 && first < 0xe0) length = 2;
  if (first >= 0xe0 && first < 0xf0) length = 3;
  if (first >= 0xf0 && first < 0xf5) length = 4;
  for (int i = 1; i < length; ++i) {
    if ((byte(std::size_t(i)) & 0xc0u) != 0x80u) return 0;
  }
  const unsigned second = byte(1);
  if (first == 0xe0 && second < 0xa0) return 0;  // overlong
  if (first == 0xed && second > 0x9f) return 0;  // surrogates
  if (first == 0xf0 && second < 0x90) return 0;  // overlong
  if (first == 0xf4 && second > 0x8f) return 0;  // above U+10FFFF
  return length;
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const int length = utf8_character(text, at);
    if (length == 0) return false;
    at += std::size_t(length);
  }
  return true;
}

std::string printable(std::string_view text, std::size_t limit) {
  std::string line;
  std::size_t characters = 0;
  for (std::size_t at = 0; at < text.size(); ++characters) {
    if (characters == limit) return line + "…";
    const int length = utf8_character(text, at);
    const auto first = static_cast<unsigned char>(text[at]);
    if (first == '\n') line += "\\n";
    else if (first == '\r') line += "\\r";
    else if (first == '\t') line += "\\t";
    else if (length == 0 || first < 0x20 || first == 0x7f) line += fmt::format("\\x{:02x}", first);
    else line += text.substr(at, std::size_t(length));
    at += std::size_t(std::max(length, 1));
  }
  return line;
}

bool is_plain_name(std::string_view name) {
  if (name.empty() || name == "." || name == "..") return false;
  const auto harmless = [](char c) {
    return c != '/' && c != '\\' && static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
  };
  return std::all_of(name.begin(), name.end(), harmless);
}

namespace {

/// Sees every JSON event; keeps only the keys of the objects that are open.
class JsonChecker : public nlohmann::json_sax<nlohmann::json> {
 public:
  JsonChecker(const std::string& text, const std::string& name, int depth) : text_(text), name_(name), depth_(depth) {}
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(); }
  bool start_array(std::size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& key) override {
    if (!keys_.back().insert(key).second) {
      fail(ExitCode::bad_data, "{}: the key '{}' is twice in one object; keep one of them", name_, printable(key));
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    const std::size_t end = std::min(position, text_.size());
    const auto line = 1 + std::count(text_.begin(), text_.begin() + std::ptrdiff_t(end), '\n');
    const std::size_t start = end > 20 ? end - 20 : 0;
    fail(ExitCode::bad_data, "{}: malformed JSON in line {}, byte {} (after '{}'); correct it or get the file again",
         name_, line, position, printable(text_.substr(start, end - start)));
  }

 private:
  bool open() {
    keys_.emplace_back();
    if (int(keys_.size()) > depth_) {
      fail(ExitCode::bad_data, "{}: JSON nested more than {} levels deep; is it the right file?", name_, depth_);
    }
    return true;
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  const std::string& text_;
  const std::string& name_;
  int depth_;
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

void check_json(const std::string& text, const std::string& name, int depth) {
  if (text.find('\0') != std::string::npos) {  // the parser takes it for the end and would not look at the rest
    fail(ExitCode::bad_data, "{}: malformed JSON: a NUL at byte {}; get the file again", name, text.find('\0'));
  }
  JsonChecker checker(text, name, depth);
  nlohmann::json::sax_parse(text, &checker);
}

}  // namespace capstan::framework
