// Section of a text's positions, token by token.

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "framework/report/sections.h"
#include "kernels/check.h"

namespace capstan::framework {

namespace {

// A page stays below 2 MB: maps share this among the models.
constexpr std::size_t all_small_maps = 32, all_rows = 64, numbered_cells = 2600;

/// Layer and head of one map or row.
struct Place {
  const LayerGates* gates;
  std::int64_t head;
  std::string name() const { return fmt::format("L{} H{}", gates->layer, head); }
};

/// All layers' heads, or at most `most`, evenly chosen.
std::vector<Place> places(const std::vector<LayerGates>& layers, std::size_t most) {
  std::vector<Place> all, chosen;
  for (const LayerGates& layer : layers)
    for (std::int64_t h = 0; h < layer.heads; ++h) all.push_back({&layer, h});
  const std::size_t count = std::min(all.size(), std::max<std::size_t>(1, most));
  for (std::size_t i = 0; i < count; ++i) chosen.push_back(all[i * all.size() / count]);
  return chosen;
}

std::string choice_note(const std::vector<LayerGates>& layers, std::size_t shown) {
  std::size_t all = 0;
  for (const LayerGates& layer : layers) all += std::size_t(layer.heads);
  return shown == all ? "" : fmt::format(" {} of {} heads, evenly chosen.", shown, all);
}

double cut(double position, double last) { return std::isfinite(position) ? std::min(position, last) : position; }

/// Short enough for a cell: .93, 1.2, 17
std::string cell_number(double value) {
  if (!std::isfinite(value)) return "";
  if (value >= 0.995 && value < 1) return "1.0";
  return value < 1 ? fmt::format("{:.2f}", value).substr(1) : fmt::format("{:.{}f}", value, value < 9.95 ? 1 : 0);
}

HeatMap token_map(const TextPositions& text, std::string title, std::vector<std::string> rows, std::int64_t columns,
                  std::vector<double> values, double high) {
  HeatMap map;
  map.title = std::move(title);
  map.rows = std::move(rows);
  map.columns.assign(text.tokens.begin(), text.tokens.begin() + columns);
  map.values = std::move(values);
  map.high = high;
  map.slanted = true;
  map.cell_height = 18;
  if (map.values.size() <= numbered_cells)
    for (const double value : map.values) map.texts.push_back(cell_number(value));
  else map.cell_width = 14;
  return map;
}

/// One query's gates and positions, per layer and head, over the keys up to it.
std::string query_maps(const TextPositions& text, std::int64_t query, std::size_t rows) {
  const std::vector<Place> shown = places(text.gates, rows);
  std::vector<std::string> names;
  std::vector<double> gates, positions;
  double last = 0;
  for (const Place& place : shown) {
    names.push_back(place.name());
    last = std::max(last, place.gates->last_position);
    for (std::int64_t key = 0; key <= query; ++key) {
      gates.push_back(place.gates->at(place.gates->gate, place.head, query, key));
      positions.push_back(
          cut(place.gates->at(place.gates->position, place.head, query, key), place.gates->last_position));
    }
  }
  double greatest = 0;
  for (const double p : positions) greatest = std::isfinite(p) ? std::max(greatest, p) : greatest;
  const std::string where = fmt::format("token {}, “{}”", query, text.tokens[std::size_t(query)]);
  HeatMap gate = token_map(text, "CoPE: gates of " + where, names, query + 1, gates, 1);
  HeatMap position = token_map(text, "CoPE: positions seen from " + where, names, query + 1, positions, greatest);
  gate.note = "Gate of every key for this query." + choice_note(text.gates, shown.size());
  position.note = fmt::format("Sum of the gates from the key to the query, at most {}.", number_text(last));
  gate.scale = "gate";
  position.scale = "position";
  return heat_map(gate) + heat_map(position);
}

std::string all_positions(const TextPositions& text, std::size_t most) {
  const std::vector<Place> shown = places(text.gates, most);
  const auto n = std::int64_t(text.tokens.size());
  double greatest = 0;
  for (const Place& place : shown)
    for (const double p : place.gates->position)
      if (std::isfinite(p)) greatest = std::max(greatest, cut(p, place.gates->last_position));
  std::string out = fmt::format("<h4>CoPE: positions of all pairs</h4>\n{}<div class=\"smalls\">\n",
                                heat_scale("position", 0, greatest));
  for (const Place& place : shown) {
    std::vector<double> values(std::size_t(n * n));
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t j = 0; j < n; ++j)
        values[std::size_t(i * n + j)] =
            cut(place.gates->at(place.gates->position, place.head, i, j), place.gates->last_position);
    out += small_map(place.name(), n, values, 0, greatest);
  }
  return out + "</div>\n" +
         page_note("Rows: queries, from the text's start down; columns: keys. Distances would be diagonal stripes." +
                   choice_note(text.gates, shown.size()));
}

std::string state_maps(const TextPositions& text) {
  std::vector<std::string> names;
  std::vector<double> magnitude, drift;
  for (const LayerStates& layer : text.states) {
    names.push_back(fmt::format("into L{}", layer.layer));
    magnitude.insert(magnitude.end(), layer.magnitude.begin(), layer.magnitude.end());
    drift.insert(drift.end(), layer.drift.begin(), layer.drift.end());
  }
  const auto most = [](const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); };
  const auto n = std::int64_t(text.tokens.size());
  const double low = *std::min_element(magnitude.begin(), magnitude.end()),
               high = std::max(low + 1e-6, most(magnitude)), far = std::max(1e-6, most(drift));
  HeatMap first = token_map(text, "TAPE: |z| of each token's state", names, n, magnitude, high);
  HeatMap second = token_map(text, "TAPE: drift of the state's angle from RoPE's, degrees", names, n, drift, far);
  first.low = low;
  if (!first.texts.empty()) {  // close to 1: two decimals
    first.cell_width = 30;
    for (std::size_t i = 0; i < first.texts.size(); ++i) first.texts[i] = fmt::format("{:.2f}", first.values[i]);
  }
  first.note = "Mean over heads and frequencies; RoPE's |z| is 1 (or the scaling's amplitude).";
  second.note = "Mean of the absolute angle over heads and frequencies. Layer 0 reads RoPE's phases.";
  first.scale = "|z|";
  second.scale = "degrees";
  return heat_map(first) + heat_map(second);
}

std::string loss_map(const TextPositions& text) {
  double high = 0;
  for (const double nll : text.nll) high = std::isfinite(nll) ? std::max(high, nll) : high;
  HeatMap map = token_map(text, "Loss of each token, nat", {"loss"}, std::int64_t(text.tokens.size()), text.nll, high);
  map.note = "Given the tokens before it.";
  return heat_map(map);
}

}  // namespace

std::string text_section(const std::vector<TextPositions>& texts, const std::string& name) {
  if (texts.empty()) return "";
  std::string out = fmt::format("<section id=\"text\"><h2>A text, token by token</h2>\n{}",
                                page_note(fmt::format("The first tokens of {}. “·” is a space.", name)));
  const auto mapped = std::size_t(
      std::count_if(texts.begin(), texts.end(), [](const TextPositions& text) { return !text.gates.empty(); }));
  for (const TextPositions& text : texts) {
    const auto n = std::int64_t(text.tokens.size());
    out += fmt::format("<h3>{}</h3>\n", escaped(text.model)) + loss_map(text);
    if (text.gates.empty() && text.states.empty())
      out += page_note("This encoding has neither gates nor states: its positions do not depend on the text.");
    if (!text.gates.empty()) {
      out += all_positions(text, all_small_maps / mapped);
      for (const std::int64_t query : std::set<std::int64_t>{n / 2, n - 1})
        out += query_maps(text, query, all_rows / mapped);
    }
    if (!text.states.empty()) out += state_maps(text);
  }
  return out + "</section>\n";
}

}  // namespace capstan::framework
