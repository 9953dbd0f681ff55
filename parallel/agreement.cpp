#include "parallel/agreement.h"

#include <algorithm>

#include "parallel/failure.h"

namespace capstan::parallel {

namespace {

/// "4:name5:value…": values may hold any character.
std::string packed(const Facts& facts) {
  std::string text;
  for (const auto& [name, value] : facts) text += fmt::format("{}:{}{}:{}", name.size(), name, value.size(), value);
  return text;
}

std::string next_field(const std::string& text, std::size_t& at) {
  const std::size_t colon = text.find(':', at);
  CAPSTAN_CHECK(colon != std::string::npos, "facts of {} bytes end at {}", text.size(), at);
  const std::size_t length = std::stoul(text.substr(at, colon - at));
  at = colon + 1 + length;
  return text.substr(colon + 1, length);
}

Facts unpacked(const std::string& text) {
  Facts facts;
  for (std::size_t at = 0; at < text.size();) {
    std::string name = next_field(text, at);
    facts.emplace_back(std::move(name), next_field(text, at));
  }
  return facts;
}

const std::string* find(const Facts& facts, const std::string& name) {
  const auto found = std::find_if(facts.begin(), facts.end(), [&](const auto& fact) { return fact.first == name; });
  return found == facts.end() ? nullptr : &found->second;
}

std::string shown(const std::string* value) { return value ? "'" + *value + "'" : "nothing"; }

/// The first fact of `a` that `b` lacks or holds otherwise; "" if there is none.
std::string first_difference(const Facts& a, const Facts& b) {
  for (const auto& [name, value] : a)
    if (const std::string* other = find(b, name); !other || *other != value) return name;
  return "";
}

[[noreturn]] void fail_disagreement(const std::string& first, const std::string& other, int rank,
                                    const std::vector<std::string>& hosts) {
  const Facts a = unpacked(first), b = unpacked(other);
  std::string name = first_difference(a, b);
  if (name.empty()) name = first_difference(b, a);
  if (name.empty()) fail(ExitCode::internal, "rank {} states its facts in another order than rank 0", rank);
  fail(ExitCode::config,
       "the ranks do not agree on {}: rank 0 ({}) has {}, rank {} ({}) has {}; give all ranks the same", name,
       hosts.front(), shown(find(a, name)), rank, hosts[std::size_t(rank)], shown(find(b, name)));
}

}  // namespace

void require_agreement(Communicator& world, const Facts& facts) {
  const std::vector<std::string> all = world.all_gather(packed(facts));
  const std::vector<std::string> hosts = world.all_gather(host_name());
  for (int rank = 1; rank < world.size(); ++rank)
    if (all[std::size_t(rank)] != all.front()) fail_disagreement(all.front(), all[std::size_t(rank)], rank, hosts);
}

}  // namespace capstan::parallel
