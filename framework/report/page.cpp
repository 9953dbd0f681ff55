#include "framework/report/page.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "framework/report/sections.h"
#include "kernels/check.h"

namespace capstan::framework {

namespace {

std::string letter_of(std::size_t number) {
  const std::string letter(1, char('A' + number % 26));
  return number < 26 ? letter : letter + std::to_string(number / 26);
}

std::string folder_of(const EvaluationSource& source) {
  const std::size_t with = source.model.find(" with ");
  return source.model.substr(0, with);
}

/// "step-000100" of a checkpoint within the run.
std::string last_part(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

}  // namespace

std::vector<ReportSeries> report_series(const std::vector<ReportRun>& runs) {
  std::vector<ReportSeries> own, other;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const ReportRun& run = runs[i];
    std::set<std::string> folders;  // checkpoints by name, so that the last is the newest
    for (const auto& e : run.perplexity) folders.insert(folder_of(e.source));
    for (const auto& e : run.retrieval) folders.insert(folder_of(e.source));
    for (const auto& e : run.tasks) folders.insert(folder_of(e.source));
    const std::string newest = folders.empty() ? "" : *folders.rbegin();
    own.push_back({i, "", run.name, 0, true, {}, {}, {}});
    std::map<std::string, std::size_t> place;  // model as evaluated -> index in `other`
    const auto series_for = [&](const EvaluationSource& source) -> ReportSeries& {
      const std::string folder = folder_of(source);
      if (source.how.empty() && folder == newest) return own[i];
      const auto [at, is_new] = place.emplace(source.model, other.size());
      if (is_new) {
        std::string name = run.name;
        if (folder != newest) name += " at " + last_part(folder);
        if (!source.how.empty()) name += " with " + source.how;
        other.push_back({i, "", name, 0, false, {}, {}, {}});
      }
      return other[at->second];
    };
    for (const auto& e : run.perplexity) series_for(e.source).perplexity.push_back(&e);
    for (const auto& e : run.retrieval) series_for(e.source).retrieval.push_back(&e);
    for (const auto& e : run.tasks) series_for(e.source).tasks.push_back(&e);
  }
  own.insert(own.end(), std::make_move_iterator(other.begin()), std::make_move_iterator(other.end()));
  for (std::size_t i = 0; i < own.size(); ++i) {
    own[i].letter = letter_of(i);
    own[i].look = int(i % 9);
  }
  return own;
}

std::vector<ChartLine> legend_lines(const std::vector<ReportSeries>& series) {
  std::vector<ChartLine> lines;
  for (const ReportSeries& s : series) lines.push_back({s.letter, s.name, s.look, {}});
  return lines;
}

std::string html_table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows) {
  std::string out = "<div class=\"scroll\"><table><thead><tr>";
  for (const std::string& cell : head) out += fmt::format("<th scope=\"col\">{}</th>", escaped(cell));
  out += "</tr></thead><tbody>\n";
  for (const auto& row : rows) {
    out += "<tr>";
    for (std::size_t i = 0; i < row.size(); ++i)
      out += i == 0 ? fmt::format("<th scope=\"row\">{}</th>", escaped(row[i]))
                    : fmt::format("<td>{}</td>", escaped(row[i]));
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string page_note(const std::string& text, bool refused) {
  return fmt::format("<p class=\"{}\">{}</p>\n", refused ? "refused" : "note", escaped(text));
}

// ---- the summary ----------------------------------------------------------------------------------------------------

namespace {

struct Summary {
  std::vector<std::int64_t> windows;  // columns of perplexity
  std::vector<ReportSeries> series;
};

Summary summary_of(const std::vector<ReportRun>& runs) {
  Summary summary{{}, report_series(runs)};
  std::set<std::int64_t> windows;
  for (const ReportRun& run : runs)
    for (const auto& e : run.perplexity) windows.insert(e.window);
  summary.windows.assign(windows.begin(), windows.end());
  return summary;
}

/// Several evaluations of one window, of different conventions: none stands for all.
const PerplexityEvaluation* at_window(const ReportSeries& series, std::int64_t window) {
  const PerplexityEvaluation* found = nullptr;
  for (const PerplexityEvaluation* e : series.perplexity)
    if (e->window == window && found) return nullptr;
    else if (e->window == window) found = e;
  return found;
}

struct Score {
  std::int64_t correct = 0, trials = 0;
};

Score passkey_score(const ReportSeries& series) {
  Score score;
  for (const RetrievalEvaluation* e : series.retrieval)
    for (const auto& cell : e->cells)
      if (e->task == "passkey") score.correct += cell.correct, score.trials += cell.trials;
  return score;
}

/// One, or one for each file whose steps stand apart.
std::string last_losses(const TrainingCurve& curve) {
  std::vector<std::string> losses;
  for (const std::int64_t file : curve.files_apart()) losses.push_back(number_text(curve.of_file(file).last_loss()));
  return losses.empty() ? number_text(curve.last_loss()) : fmt::format("{}", fmt::join(losses, " / "));
}

std::string summary_section(const Report& report) {
  const Summary summary = summary_of(report.runs);
  std::vector<std::string> head = {"run", "position", "steps", "tokens", "last loss", "validation"};
  for (const std::int64_t window : summary.windows) head.push_back(fmt::format("ppl {}", number_text(double(window))));
  head.push_back("passkey");
  std::vector<std::vector<std::string>> rows;
  for (const ReportSeries& s : summary.series) {
    const ReportRun& run = report.runs[s.run];
    std::vector<std::string> row = {fmt::format("{}  {}", s.letter, s.name), s.own ? run.position : ""};
    if (s.own && !run.curve.steps.empty()) {
      const std::string steps = number_text(double(run.curve.steps.back().step));
      const bool is_done = run.planned_steps <= run.curve.steps.back().step;
      row.push_back(is_done ? steps : fmt::format("{} of {}", steps, number_text(double(run.planned_steps))));
      row.push_back(number_text(run.curve.tokens()));
      row.push_back(last_losses(run.curve));
      row.push_back(number_text(run.curve.last_validation()));
    } else {
      row.insert(row.end(), 4, "–");
    }
    for (const std::int64_t window : summary.windows) {
      const PerplexityEvaluation* e = at_window(s, window);
      row.push_back(e ? number_text(e->perplexity) : "–");
    }
    const Score score = passkey_score(s);
    row.push_back(score.trials ? fmt::format("{}/{}", score.correct, score.trials) : "–");
    rows.push_back(row);
  }
  std::string data;  // everything but letters and digits as %XX
  for (const unsigned char c : report_csv(report.runs))
    data += std::isalnum(c) ? std::string(1, char(c)) : fmt::format("%{:02X}", c);
  std::string out = "<section id=\"summary\"><h2>Summary</h2>\n" + html_table(head, rows);
  out += fmt::format(
      "<p class=\"screen\"><a download=\"report.csv\" href=\"data:text/csv;charset=utf-8,{}\">This table as "
      "CSV</a></p>\n",
      data);
  out += page_note(
      "Losses in nat per token, of the last step; “/”: of the last steps of each training file, where none has "
      "sequences of "
      "several; ppl: perplexity of windows of that many tokens, by the conventions named below; “–”: "
      "not "
      "measured, or in several ways.");
  const std::string conflict = validation_conflict(report.runs);
  return out + (conflict.empty() ? "" : page_note(conflict, true)) + "</section>\n";
}

// ---- configs, and how it was made -----------------------------------------------------------------------------------

std::string config_section(const std::vector<ReportRun>& runs, const std::vector<ReportSeries>& series) {
  std::string out = "<section id=\"configs\"><h2>Differences of the configs</h2>\n";
  if (runs.size() == 1) return out + page_note("One run: nothing to compare.") + "</section>\n";
  std::vector<std::string> keys, head = {"option"};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    head.push_back(fmt::format("{}  {}", series[i].letter, runs[i].name));
    for (const auto& [key, value] : runs[i].options)
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
  }
  std::vector<std::vector<std::string>> rows;
  for (const std::string& key : keys) {
    std::vector<std::string> row = {key};
    for (const ReportRun& run : runs) {
      const auto at =
          std::find_if(run.options.begin(), run.options.end(), [&](const auto& o) { return o.first == key; });
      row.push_back(at == run.options.end() ? "–" : at->second.empty() ? "(empty)" : at->second);
    }
    const std::set<std::string> values(row.begin() + 1, row.end());
    if (values.size() > 1 && !(values.size() == 2 && values.count("–"))) rows.push_back(row);
  }
  if (rows.empty()) return out + page_note("Every option that both name has the same value.") + "</section>\n";
  return out + html_table(head, rows) + page_note("Only what differs. “–”: a model without this part of a config.") +
         "</section>\n";
}

std::string shell_word(const std::string& word) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) || c >= 0x80 || std::string("-_./+=,:@").find(char(c)) != std::string::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

/// "position.scaling = linear, position.factor = 2" as options.
std::string stretch_options(const std::string& how) {
  std::string out;
  for (const std::string& part : split_list(how)) {
    const std::size_t equals = part.find(" = ");
    if (equals != std::string::npos)
      out += fmt::format(" --{} {}", part.substr(0, equals), shell_word(part.substr(equals + 3)));
  }
  return out;
}

std::string command_of(const PerplexityEvaluation& e) {
  const std::string part = e.document_tokens ? fmt::format(" --document-tokens {}", e.document_tokens)
                           : e.complete      ? ""
                                             : fmt::format(" --max-windows {}", e.windows);
  return fmt::format("capstan eval perplexity --model {} --data {} --window {} --stride {} --convention {}{}{}{}",
                     shell_word(folder_of(e.source)), shell_word(e.data), e.window, e.stride, e.convention,
                     e.convention == "once" ? " --documents " + e.documents : "", part, stretch_options(e.source.how));
}

std::string task_options(const RetrievalEvaluation& e) {
  if (e.task == "passkey") return "";
  const std::string haystack = " --haystack " + shell_word(e.haystack);
  return e.task == "ruler-multikey" ? fmt::format(" --task multikey --keys {}{}", e.keys, haystack) : haystack;
}

std::string command_of(const RetrievalEvaluation& e) {
  std::string command = fmt::format("capstan eval {} --model {}{}", e.task == "passkey" ? "passkey" : "needle",
                                    shell_word(folder_of(e.source)), task_options(e));
  if (e.prompts.starts_with("preset "))
    return command + " --preset " + shell_word(e.prompts.substr(7)) + stretch_options(e.source.how);
  std::set<std::int64_t> lengths;
  std::set<double> depths;
  for (const auto& cell : e.cells) lengths.insert(cell.length), depths.insert(cell.depth);
  if (e.cells.empty()) return command;
  return command + fmt::format(" --lengths {} --depths {} --trials {} --seed {}{}", fmt::join(lengths, ","),
                               depths.size(), e.cells.front().trials, shell_word(e.prompts.substr(5)),
                               stretch_options(e.source.how));
}

/// A file of `capstan eval task` holds several sets: one command for all of them.
std::map<std::string, std::string> task_commands(const ReportRun& run) {
  std::map<std::string, std::string> data, part, commands;
  for (const TaskSetEvaluation& e : run.tasks) {
    std::string& files = data[e.source.file];
    files += (files.empty() ? "" : ",") + e.data;
    if (!e.complete) part[e.source.file] = fmt::format(" --max-examples {}", e.examples);
    commands[e.source.file] = fmt::format("capstan eval task --model {} --data {}{}{}", shell_word(folder_of(e.source)),
                                          shell_word(files), part[e.source.file], stretch_options(e.source.how));
  }
  return commands;
}

std::string made_section(const Report& report) {
  std::string out = "<section id=\"made\"><h2>How this was made</h2>\n";
  const auto line = [&](const std::string& what, const std::string& command) {
    out += fmt::format("<p>{}<br /><code>{}</code></p>\n", escaped(what), escaped(command));
  };
  line("This page, by " + report.build, report.command);
  for (const ReportRun& run : report.runs) {
    out += fmt::format("<h3>{}</h3>\n", escaped(run.name));
    if (run.trained)
      line("Trained; again:", fmt::format("capstan train {}/config.cfg --run NEW", shell_word(run.folder)));
    else line("Not trained here", run.folder);
    if (!run.tokenizer.empty()) line("Tokenizer", run.tokenizer);
    if (!run.training_data.empty()) line("Training data", run.training_data);
    if (!run.validation.empty()) line("Validation data", run.validation);
    for (const auto& e : run.perplexity) line(e.source.file, command_of(e));
    for (const auto& e : run.retrieval) line(e.source.file, command_of(e));
    for (const auto& [source, command] : task_commands(run)) line(source, command);
    for (const std::string& file : run.not_shown) out += page_note(file + ": of a kind that this page does not show.");
  }
  return out + "</section>\n";
}

std::string navigation(const std::string& body) {
  std::vector<std::pair<std::string, std::string>> parts = {{"summary", "Summary"},
                                                            {"training", "Training"},
                                                            {"layers", "Positions in training"},
                                                            {"perplexity", "Perplexity"}};
  for (const RetrievalTaskName& name : retrieval_tasks()) parts.emplace_back(name.task, name.title);
  parts.insert(parts.end(),
               {{"tasks", "Tasks"}, {"text", "A text"}, {"configs", "Configs"}, {"made", "How this was made"}});
  std::string out = "<nav>";
  for (const auto& [id, name] : parts)
    if (body.find(fmt::format("<section id=\"{}\"", id)) != std::string::npos)
      out += fmt::format("<a href=\"#{}\">{}</a>\n", id, name);
  return out + "</nav>\n";
}

}  // namespace

std::string report_csv(const std::vector<ReportRun>& runs) {
  const Summary summary = summary_of(runs);
  const auto field = [](const std::string& text) {
    if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
    std::string out = "\"";
    for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
    return out + "\"";
  };
  const auto number = [](double value) { return std::isfinite(value) ? fmt::format("{}", value) : std::string(); };
  std::string out = "run,position,steps,tokens,last_loss,validation_loss";
  for (const std::int64_t window : summary.windows) out += fmt::format(",perplexity_{}", window);
  out += ",passkey_correct,passkey_trials\n";
  for (const ReportSeries& s : summary.series) {
    const ReportRun& run = runs[s.run];
    out += field(s.name) + "," + field(run.position);
    if (s.own && !run.curve.steps.empty())
      out += fmt::format(",{},{:.0f},{},{}", run.curve.steps.back().step, run.curve.tokens(),
                         number(run.curve.last_loss()), number(run.curve.last_validation()));
    else out += ",,,,";
    for (const std::int64_t window : summary.windows) {
      const PerplexityEvaluation* e = at_window(s, window);
      out += e ? fmt::format(",{}", number(e->perplexity)) : ",";
    }
    const Score score = passkey_score(s);
    out += score.trials ? fmt::format(",{},{}\n", score.correct, score.trials) : ",,\n";
  }
  return out;
}

std::string report_page(const Report& report) {
  const std::vector<ReportSeries> series = report_series(report.runs);
  std::string names;
  for (const ReportRun& run : report.runs) names += (names.empty() ? "" : ", ") + run.name;
  const std::string body = summary_section(report) + training_section(report.runs, series) +
                           layer_section(report.runs) + perplexity_section(series) + retrieval_sections(series) +
                           task_section(series) + text_section(report.texts, report.text_name) +
                           config_section(report.runs, series) + made_section(report);
  return fmt::format(
             "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\" />\n<meta name=\"viewport\" "
             "content=\"width=device-width, initial-scale=1\" />\n<title>Capstan: {}</title>\n<style>",
             escaped(names)) +
         report_style + fmt::format("</style></head>\n<body>\n<h1>Capstan: {}</h1>\n", escaped(names)) +
         navigation(body) + body + "</body></html>\n";
}

}  // namespace capstan::framework
