#pragma once
// Whether a page of capstan report is well formed: a checker of its own, stricter than a browser.

#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

#include "kernels/check.h"

namespace capstan::testing {

/// Tags balanced, attributes quoted and given once, no bare & or < in texts. Empty if so, else what is wrong.
inline std::string fault_of(const std::string& page) {
  std::vector<std::string> open;
  static const std::regex tag("^<(/?)([A-Za-z][A-Za-z0-9]*)((?: +[A-Za-z_:-]+=\"[^\"<]*\")*) *(/?)>");
  static const std::regex entity("^&(amp|lt|gt|quot|#39);");
  static const std::regex attribute(" ([A-Za-z_:-]+)=\"");
  for (std::size_t at = page.compare(0, 15, "<!DOCTYPE html>") == 0 ? 15 : 0; at < page.size();) {
    const std::string here = page.substr(at, 60);
    if (page[at] == '&') {
      if (!std::regex_search(here, entity)) return "bare & at " + here;
      ++at;
    } else if (page[at] != '<') {
      ++at;
    } else {
      const std::string text = page.substr(at, page.find('>', at) - at + 1);
      // Paths are long, and std::regex recurses: their texts are taken out first.
      std::string small = text;
      for (std::size_t quote = small.find("=\""); quote != std::string::npos; quote = small.find("=\"", quote + 2)) {
        const std::size_t end = small.find('"', quote + 2);
        if (end == std::string::npos) return "an open quote in " + here;
        if (small.find('<', quote) < end) return "a < in an attribute of " + here;
        small.replace(quote + 2, end - quote - 2, "");
      }
      std::smatch found;
      if (!std::regex_search(small, found, tag)) return "not a tag: " + here;
      std::set<std::string> names;
      const std::string attributes = found[3];
      for (std::sregex_iterator i(attributes.begin(), attributes.end(), attribute), end; i != end; ++i)
        if (!names.insert((*i)[1]).second) return "an attribute twice: " + here;
      if (found[1] == "/") {
        if (open.empty() || open.back() != found[2]) return "closed, but not open: " + here;
        open.pop_back();
      } else if (found[4] != "/") {
        open.push_back(found[2]);
      }
      at += text.size();
    }
  }
  return open.empty() ? "" : "left open: " + open.back();
}

/// Whole, alone (no address but SVG's name), and without numbers that are none.
inline void expect_sound(const std::string& page) {
  EXPECT_EQ(fault_of(page), "");
  std::string rest = page;
  const std::string name = "http://www.w3.org/2000/svg";
  for (std::size_t at = 0; (at = rest.find(name, at)) != std::string::npos;) rest.erase(at, name.size());
  for (const char* no : {"http://", "https://", "<script", "url(", "nan", "=\"-nan", "inf "})
    EXPECT_EQ(rest.find(no), std::string::npos) << no << ": " << rest.substr(rest.find(no), 80);
  EXPECT_LT(page.size(), std::size_t(2) << 20);
}

}  // namespace capstan::testing
