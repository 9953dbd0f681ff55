#include "framework/tokenizers/tokenizer_json.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>

#include "framework/files.h"
#include "framework/json.h"
#include "framework/tokenizers/tokenizer_parts.h"
#include "kernels/check.h"

namespace capstan::framework {
namespace {

using Json = nlohmann::json;
using Names = std::vector<std::string_view>;

constexpr std::size_t text_limit = 4096;  // bytes of one token
constexpr std::size_t added_limit = 100'000;

/// A value with the path that errors about it name.
class Node {
 public:
  Node(const Json& value, std::string where) : value_(value), where_(std::move(where)) {}

  [[noreturn]] void refuse(const std::string& allowed) const {
    fail(ExitCode::bad_data, "{} is {}, allowed is {}; this tokenizer cannot be used here", where_,
         value_.is_structured() && value_.size() > 100 ? "a long list" : printable(value_.dump()), allowed);
  }

  /// Null where the field is absent.
  Node at(const std::string& key) const {
    static const Json absent;
    const auto found = value_.find(key);
    const std::string separator = where_.empty() || where_.back() == ' ' ? "" : ".";
    return {found == value_.end() ? absent : *found, where_ + separator + key};
  }

  Node required(const std::string& key, const char* kind) const {
    Node field = at(key);
    if (field.is_null()) field.refuse(kind);
    return field;
  }

  /// Refuses what is no object, or has other fields than these.
  const Node& only(const Names& fields) const {
    if (!value_.is_object()) refuse("an object");
    for (const auto& [key, value] : value_.items())
      if (std::find(fields.begin(), fields.end(), key) == fields.end())
        Node(value, where_ + (where_.back() == ' ' ? "" : ".") + printable(key))
            .refuse(fmt::format("none: the fields known here are {}", fmt::join(fields, ", ")));
    return *this;
  }

  std::string text() const {
    if (!value_.is_string()) refuse("a text");
    return value_.get<std::string>();
  }

  std::string text_of(const std::string& key) const { return at(key).text(); }

  bool flag(const std::string& key, bool absent) const {
    const Node field = at(key);
    if (field.is_null()) return absent;
    if (!field.value_.is_boolean()) field.refuse("true or false");
    return field.value_.get<bool>();
  }

  std::int32_t id() const {
    const double limit = double(tokenizer_parts::token_limit);
    if (!value_.is_number_integer() || value_.get<double>() < 0 || value_.get<double>() >= limit)
      refuse(fmt::format("an id from 0 to {}", tokenizer_parts::token_limit - 1));
    return value_.get<std::int32_t>();
  }

  template <class Function> void for_each(Function&& function) const {
    if (!value_.is_array()) refuse("a list");
    for (std::size_t i = 0; i < value_.size(); ++i) function(Node(value_[i], fmt::format("{}[{}]", where_, i)));
  }

  bool is_null() const { return value_.is_null(); }
  const Json& json() const { return value_; }
  const std::string& where() const { return where_; }

 private:
  const Json& value_;
  std::string where_;
};

/// Calls `use` for each component of a "Sequence" in `list`, within others as well, or for the one that is not one.
template <class Use> void for_each_component(const Node& node, const char* list, Use&& use) {
  if (node.is_null()) return;
  if (!node.json().is_object()) node.refuse("an object or null");
  if (node.text_of("type") != "Sequence") return use(node);
  node.only({"type", list});
  node.at(list).for_each([&](const Node& part) { for_each_component(part, list, use); });
}

// ---- The alphabet of byte-level BPE (GPT-2's bytes_to_unicode): the printable characters of Latin-1 are their own
// bytes, the other 68 bytes are U+0100 and on, in order.

std::string utf8_of(std::uint32_t character) {
  if (character < 0x80) return std::string(1, char(character));
  return {char(0xc0 | character >> 6), char(0x80 | (character & 0x3f))};  // none has more than 11 bits
}

const std::array<std::string, 256>& byte_characters() {
  static const std::array<std::string, 256> characters = [] {
    std::array<std::string, 256> made;
    std::uint32_t next = 0x100;
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const bool printed = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      made[byte] = utf8_of(printed ? byte : next++);
    }
    return made;
  }();
  return characters;
}

/// The bytes that a token stands for. A token with another character (not made by merging) stands for itself.
std::string bytes_of_token(const std::string& token) {
  static const std::unordered_map<std::string_view, char> bytes = [] {
    std::unordered_map<std::string_view, char> made;
    for (std::size_t byte = 0; byte < 256; ++byte) made[byte_characters()[byte]] = char(byte);
    return made;
  }();
  std::string out;
  for (std::size_t at = 0; at < token.size();) {
    const std::size_t length = std::size_t(utf8_character(token, at));
    const auto found = bytes.find(std::string_view(token).substr(at, length));
    if (found == bytes.end()) return token;
    out += found->second;
    at += length;
  }
  return out;
}

// ---- The fields, one function each.

void check_token(const Node& node, const std::string& token) {
  if (token.empty() || token.size() > text_limit)
    node.refuse(fmt::format("a token of 1 to {} bytes, not one of {}", text_limit, token.size()));
}

void set_id(TokenizerRules& rules, const Node& node, const std::string& token, std::int32_t id,
            const std::string& bytes) {
  check_token(node, token);
  if (rules.bytes.size() <= std::size_t(id)) rules.bytes.resize(std::size_t(id) + 1);
  if (!rules.bytes[std::size_t(id)].empty())
    node.refuse(fmt::format("an id of its own: {} is that of '{}', too", id, printable(rules.bytes[std::size_t(id)])));
  rules.bytes[std::size_t(id)] = bytes;
  rules.ids[token] = id;
}

void read_vocabulary(TokenizerRules& rules, const Node& vocabulary) {
  if (!vocabulary.json().is_object() || vocabulary.json().empty()) vocabulary.refuse("an object of tokens and ids");
  rules.ids.reserve(vocabulary.json().size());
  for (const auto& [token, id] : vocabulary.json().items()) {
    const Node node(id, fmt::format("{}: '{}'", vocabulary.where(), printable(token)));
    set_id(rules, node, token, node.id(), bytes_of_token(token));
  }
  for (const std::string& character : byte_characters()) {
    const auto found = rules.ids.find(character);
    rules.byte_ids.push_back(found == rules.ids.end() ? -1 : found->second);
  }
}

/// "a b" or ["a", "b"].
std::pair<std::string, std::string> read_pair(const Node& merge) {
  const Json& json = merge.json();
  if (json.is_array() && json.size() == 2 && json[0].is_string() && json[1].is_string())
    return {json[0].get<std::string>(), json[1].get<std::string>()};
  const std::string text = json.is_string() ? json.get<std::string>() : "";
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
    merge.refuse("two tokens, as \"a b\" or [\"a\", \"b\"]");
  return {text.substr(0, space), text.substr(space + 1)};
}

void read_merges(TokenizerRules& rules, const Node& merges) {
  std::set<std::pair<std::int32_t, std::int32_t>> seen;
  merges.for_each([&](const Node& merge) {
    const auto [left, right] = read_pair(merge);
    const auto id_of = [&](const std::string& token) {
      const auto found = rules.ids.find(token);
      if (found == rules.ids.end())
        merge.refuse(fmt::format("tokens of the vocabulary, which has no '{}'", printable(token)));
      return found->second;
    };
    const BpeMerge made{id_of(left), id_of(right), id_of(left + right)};
    if (!seen.insert({made.left, made.right}).second) merge.refuse("a pair that is there once");
    rules.merges.push_back(made);
  });
}

void read_model(TokenizerRules& rules, const Node& model) {
  model.only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
              "byte_fallback", "ignore_merges", "vocab", "merges"});
  const Node type = model.at("type");  // older files have none
  if (!type.is_null() && type.json() != "BPE") type.refuse("BPE");
  const Node dropout = model.at("dropout");
  if (!dropout.is_null() && dropout.json() != 0) dropout.refuse("null: the same text must give the same ids");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Node node = model.at(affix);
    if (!node.is_null() && node.json() != "") node.refuse("null (byte-level BPE)");
  }
  if (model.flag("byte_fallback", false))
    model.at("byte_fallback").refuse("false (byte-level BPE); of such a model, use tokenizer.model");
  rules.whole_words = model.flag("ignore_merges", false);
  rules.fuse_unknown = model.flag("fuse_unk", false);
  read_vocabulary(rules, model.required("vocab", "an object of tokens and ids"));
  read_merges(rules, model.required("merges", "a list of pairs"));
  const Node unknown = model.at("unk_token");
  if (unknown.is_null()) return;
  const auto found = rules.ids.find(unknown.text());
  if (found == rules.ids.end()) unknown.refuse("a token of the vocabulary");
  rules.unknown = found->second;
}

void read_added(TokenizerRules& rules, const Node& list) {
  if (list.is_null()) return;
  std::set<std::string> seen;
  list.for_each([&](const Node& node) {
    node.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    if (node.flag("single_word", false)) node.at("single_word").refuse("false");
    const Node content = node.required("content", "a text");
    AddedToken token{node.required("id", "an id").id(), content.text(), node.flag("lstrip", false),
                     node.flag("rstrip", false), node.flag("normalized", !node.flag("special", false))};
    check_token(content, token.text);
    if (!seen.insert(token.text).second || seen.size() > added_limit)
      content.refuse(fmt::format("a token that is there once, at most {}", added_limit));
    const auto known = rules.ids.find(token.text);
    if (known == rules.ids.end()) set_id(rules, node.at("id"), token.text, token.id, token.text);
    else if (known->second != token.id) node.at("id").refuse(fmt::format("{}, as in model.vocab", known->second));
    rules.bytes[std::size_t(token.id)] = token.text;
    rules.added.push_back(std::move(token));
  });
}

void read_normalizer(TokenizerRules& rules, const Node& node) {
  static const std::map<std::string, NormalForm> forms = {
      {"NFC", NormalForm::nfc}, {"NFD", NormalForm::nfd}, {"NFKC", NormalForm::nfkc}, {"NFKD", NormalForm::nfkd}};
  for_each_component(node, "normalizers", [&](const Node& part) {
    const auto form = forms.find(part.text_of("type"));
    if (form == forms.end()) part.at("type").refuse("NFC, NFD, NFKC, NFKD or Sequence");
    part.only({"type"});
    rules.forms.push_back(form->second);
  });
}

void read_split(TokenizerRules& rules, const Node& node) {
  node.only({"type", "pattern", "behavior", "invert"});
  const Node pattern = node.at("pattern").only({"Regex", "String"});
  if (pattern.json().size() != 1) pattern.refuse("an object with Regex or String");
  const bool regex = pattern.json().contains("Regex");
  const Node expression = pattern.at(regex ? "Regex" : "String");
  SplitStep step;
  const std::string behavior = node.text_of("behavior");
  if (behavior != "Isolated" && behavior != "Removed") node.at("behavior").refuse("Isolated or Removed");
  if (behavior == "Removed") (node.flag("invert", false) ? step.keep_between : step.keep_matched) = false;
  step.pattern.emplace(regex ? expression.text() : escaped_pattern(expression.text()), expression.where());
  rules.steps.push_back(std::move(step));
}

void read_byte_level(TokenizerRules& rules, const Node& node) {
  node.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (node.flag("add_prefix_space", true)) {
    rules.prefix_space = true;
    rules.steps.push_back({});
  }
  if (!node.flag("use_regex", true)) return;
  SplitStep step;  // GPT-2's, which the file does not write out
  step.pattern.emplace(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", node.where());
  rules.steps.push_back(std::move(step));
}

void read_pre_tokenizer(TokenizerRules& rules, const Node& node) {
  bool byte_level = false;
  for_each_component(node, "pretokenizers", [&](const Node& part) {
    const std::string type = part.text_of("type");
    if (byte_level) part.at("type").refuse("none after ByteLevel");
    if (type == "Split") {
      read_split(rules, part);
    } else if (type == "Digits") {
      part.only({"type", "individual_digits"});
      SplitStep step;
      step.pattern.emplace(part.flag("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)", part.where());
      rules.steps.push_back(std::move(step));
    } else if (type == "ByteLevel") {
      read_byte_level(rules, part);
      byte_level = true;
    } else {
      part.at("type").refuse("ByteLevel, Split, Digits or Sequence");
    }
  });
  if (!byte_level) node.refuse("ByteLevel, or a Sequence that ends with it: only byte-level BPE is known here");
}

/// {"SpecialToken": {"id": text}} in a template, with its entry in special_tokens: the id.
std::int32_t read_template_token(const TokenizerRules& rules, const Node& processor, const Node& part) {
  const std::string name = part.only({"id", "type_id"}).text_of("id");
  const Node tokens = processor.at("special_tokens");
  if (!tokens.json().is_object() || !tokens.json().contains(name)) part.refuse("a name of special_tokens");
  const Node ids = tokens.at(name).only({"id", "ids", "tokens"}).at("ids");
  if (!ids.json().is_array() || ids.json().size() != 1) ids.refuse("a list of one id");
  const std::int32_t id = Node(ids.json()[0], ids.where() + "[0]").id();
  const auto known = rules.ids.find(name);
  if (known == rules.ids.end() || known->second != id)
    ids.refuse(fmt::format("the id of '{}' in this file: {}", printable(name),
                           known == rules.ids.end() ? "none" : std::to_string(known->second)));
  return id;
}

void read_template(TokenizerRules& rules, const Node& processor) {
  processor.only({"type", "single", "pair", "special_tokens"});
  bool text_seen = false;
  processor.at("single").for_each([&](const Node& part) {
    part.only({"SpecialToken", "Sequence"});
    if (part.json().contains("Sequence")) {
      if (text_seen) part.refuse("one Sequence");
      text_seen = true;
      return;
    }
    const std::int32_t id = read_template_token(rules, processor, part.at("SpecialToken"));
    std::int32_t& place = text_seen ? rules.last : rules.first;
    if (place >= 0) part.refuse("at most one token before the text, and one after it");
    place = id;
  });
  if (!text_seen) processor.at("single").refuse("a list with a Sequence");
}

void read_post_processor(TokenizerRules& rules, const Node& node) {
  for_each_component(node, "processors", [&](const Node& part) {
    const std::string type = part.text_of("type");
    if (type == "TemplateProcessing") read_template(rules, part);
    else if (type != "ByteLevel") part.at("type").refuse("ByteLevel, TemplateProcessing or Sequence");
  });
}

void read_decoder(const Node& node) {
  bool byte_level = false;
  for_each_component(node, "decoders", [&](const Node& part) {
    if (part.text_of("type") != "ByteLevel") part.at("type").refuse("ByteLevel");
    byte_level = true;
  });
  if (!byte_level) node.refuse("ByteLevel: only byte-level BPE is known here");
}

}  // namespace

TokenizerRules parse_tokenizer_json(const std::string& text, const std::string& name) {
  check_json(text, name);
  const Json json = Json::parse(text);
  const Node file(json, name + ": ");
  file.only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
             "decoder", "model"});
  const Node version = file.at("version");
  if (!version.is_null() && version.json() != "1.0") version.refuse("1.0");
  TokenizerRules rules;
  const Node model =
      file.required("model", "an object with a vocabulary and merges (of GPT-2's pair, name the folder)");
  // Which kind of tokenizer it is comes first: "Unigram" says more than that its merges are missing.
  if (model.json().is_object() && model.at("type").json().is_string() && model.text_of("type") != "BPE")
    model.at("type").refuse("BPE");
  read_pre_tokenizer(rules, file.at("pre_tokenizer"));
  read_model(rules, model);
  read_added(rules, file.at("added_tokens"));
  read_normalizer(rules, file.at("normalizer"));
  read_post_processor(rules, file.at("post_processor"));
  read_decoder(file.at("decoder"));
  return rules;
}

}  // namespace capstan::framework
