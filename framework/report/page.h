#pragma once
// The page of `capstan report`: one self-contained HTML text, well-formed as XML, without scripts or links to elsewhere. Equal
// input makes equal bytes.
//
// What does not belong together is not drawn together: runs of different tokenizers are refused as a whole (report_data.h); where
// only one chart is concerned, a sentence with both values stands in its place:
//   validation losses    of different data.validation
//   perplexity           of another file, convention, BOS or document rule: a chart for each; at one window with other strides or
//                        token counts: no chart
// Training losses of different data or contexts are drawn, with a sentence.

#include <string>
#include <vector>

#include "framework/report/data.h"
#include "framework/report/positions.h"

namespace capstan::framework {

struct Report {
  std::vector<ReportRun> runs;
  std::vector<TextPositions> texts;
  std::string text_name;  ///< file that they are maps of
  std::string command;    ///< that made the page
  std::string build;      ///< kernels::build_text()
};

std::string report_page(const Report& report);

/// The summary, a line per series, all digits.
std::string report_csv(const std::vector<ReportRun>& runs);

}  // namespace capstan::framework
