// The files around a tokenizer.json: those that name its marks, and GPT-2's pair, which becomes one.

#include <algorithm>
#include <filesystem>

#include "framework/files.h"
#include "framework/json.h"
#include "framework/tokenizers/tokenizer_parts.h"
#include "kernels/check.h"

namespace capstan::framework::tokenizer_parts {
namespace {

using Json = nlohmann::json;  // the ordered one takes quadratic time for a vocabulary

[[noreturn]] void refuse(const std::string& field, const Json& value, const std::string& allowed) {
  fail(ExitCode::bad_data, "{} is {}, allowed is {}; get the file again", field, printable(value.dump()), allowed);
}

Json read_json(const std::string& path) {
  const std::string text = read_file(path, file_limit);
  check_json(text, path);
  Json json = Json::parse(text);
  if (!json.is_object()) fail(ExitCode::bad_data, "{}: is no JSON object; get the file again", path);
  return json;
}

bool is_named(const Mark& mark) { return !mark.text.empty() || !mark.ids.empty(); }

/// A text, or an object with its text as `content`.
void read_text(Mark& mark, const Json& value, const std::string& field) {
  if (value.is_null()) return;
  const bool inside = value.is_object() && value.contains("content") && value["content"].is_string();
  if (!inside && !value.is_string()) refuse(field, value, "a text, an object with a text `content`, or null");
  mark = {field, (inside ? value["content"] : value).get<std::string>(), {}};
}

/// An id, or a list of ids.
void read_ids(Mark& mark, const Json& value, const std::string& field) {
  if (value.is_null()) return;
  mark = {field, "", {}};
  for (const Json& id : value.is_array() ? value : Json::array({value})) {
    const bool fits = id.is_number_integer() && id.get<double>() >= -1 && id.get<double>() < double(token_limit);
    if (!fits) refuse(field, value, fmt::format("ids below {}, or null", token_limit));
    if (id != -1) mark.ids.push_back(id.get<std::int64_t>());  // -1: none, in some files
  }
}

/// "a b" lines; the first may be a comment.
Json read_merge_lines(const std::string& path) {
  const std::string text = read_file(path, file_limit);
  if (!is_utf8(text)) fail(ExitCode::bad_data, "{}: is not UTF-8 text; get the file again", path);
  Json merges = Json::array();
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    const bool comment = begin == 0 && line.rfind("#version", 0) == 0;
    if (!line.empty() && !comment) merges.push_back(std::move(line));
    begin = end + 1;
  }
  if (merges.empty()) fail(ExitCode::bad_data, "{}: holds no merges; get the file again", path);
  return merges;
}

}  // namespace

Marks marks_beside(const std::string& folder) {
  Marks marks;
  const auto read = [&](const char* name, const char* ending, auto reader) {
    const std::string path = (std::filesystem::path(folder) / name).string();
    if ((is_named(marks.bos) && is_named(marks.end)) || !std::filesystem::is_regular_file(path)) return;
    const Json json = read_json(path);
    const auto look = [&](Mark& mark, const std::string& key) {
      if (!is_named(mark) && json.contains(key)) reader(mark, json[key], path + ": " + key);
    };
    look(marks.bos, std::string("bos_token") + ending);
    look(marks.end, std::string("eos_token") + ending);
  };
  read("tokenizer_config.json", "", read_text);
  for (const char* name : {"generation_config.json", "config.json", "hf_config.json"}) read(name, "_id", read_ids);
  return marks;
}

std::string tokenizer_json_of_pair(const std::string& vocabulary_path, const std::string& merges_path) {
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const Json model = {{"type", "BPE"},
                      {"dropout", nullptr},
                      {"unk_token", nullptr},
                      {"continuing_subword_prefix", ""},
                      {"end_of_word_suffix", ""},
                      {"fuse_unk", false},
                      {"vocab", read_json(vocabulary_path)},
                      {"merges", read_merge_lines(merges_path)}};
  const Json json = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", Json::array()},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", byte_level},
                     {"post_processor", byte_level},
                     {"decoder", byte_level},
                     {"model", model}};
  return json.dump() + "\n";
}

}  // namespace capstan::framework::tokenizer_parts
