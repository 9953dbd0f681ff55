#pragma once
// The page's parts: what report_page.cpp puts together.

#include <string>
#include <vector>

#include "framework/report/chart.h"
#include "framework/report/page.h"

namespace capstan::framework {

/// What one letter stands for: a run, or a run evaluated in another way (stretched, at an earlier checkpoint).
struct ReportSeries {
  std::size_t run = 0;
  std::string letter, name;
  int look = 0;
  bool own = true;  ///< the run as it stands
  std::vector<const PerplexityEvaluation*> perplexity;
  std::vector<const RetrievalEvaluation*> retrieval;
  std::vector<const TaskSetEvaluation*> tasks;
};
/// Runs first, in their order; then the other ways.
std::vector<ReportSeries> report_series(const std::vector<ReportRun>& runs);
/// "A name" lines for a legend.
std::vector<ChartLine> legend_lines(const std::vector<ReportSeries>& series);

std::string percent_text(double share);
/// "12.3 to 45.6 %": Wilson's 95 % interval of k in n; "–" for none.
std::string interval_text(std::int64_t k, std::int64_t n);

/// Cells as text; the first column is the row's name. It scrolls where it is wider than the page.
std::string html_table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows);
/// A sentence under a chart, or in its place.
std::string page_note(const std::string& text, bool refused = false);

std::string training_section(const std::vector<ReportRun>& runs, const std::vector<ReportSeries>& series);
std::string layer_section(const std::vector<ReportRun>& runs);
std::string perplexity_section(const std::vector<ReportSeries>& series);
/// A section per task that was evaluated.
std::string retrieval_sections(const std::vector<ReportSeries>& series);
/// Exact match of every set; a map for sets with cells of two values (addition: the operands' digits).
std::string task_section(const std::vector<ReportSeries>& series);
std::string text_section(const std::vector<TextPositions>& texts, const std::string& name);

/// Why the validation losses of these runs do not compare: one sentence with both values; empty if they do.
std::string validation_conflict(const std::vector<ReportRun>& runs);

extern const char report_style[];

}  // namespace capstan::framework
