// The table of docs/performance.md from what the benchmarks of one run wrote: bench_table FOLDER [JSON].
//
//   FOLDER/attention.json, memory.json, alone.json, step.json   Google Benchmark's output of bench_attention and bench_step
//   FOLDER/ring.json                   one object of bench_ring per line
//   FOLDER/peers.json                  optional: tests/bench/peers.py's output, measured in the same hour on the same machine
//
// Prints a row per claim: floor, goal, measured ratio and verdict; writes the same as JSON. Exit code 1 if a measured row
// is past its floor.

#include <fmt/format.h>

#include <fstream>
#include <functional>
#include <optional>
#include <sstream>

#include "framework/json.h"

namespace capstan::tests {
namespace {

using nlohmann::json;
using Figure = std::optional<double>;

/// What was measured, by name.
class Figures {
 public:
  explicit Figures(const std::string& folder) {
    for (const char* file : {"attention.json", "memory.json", "alone.json", "step.json"})
      for (const json& one : parsed(folder + "/" + file).value("benchmarks", json::array())) {
        const std::string name = one.at("name");
        if (one.value("error_occurred", false)) continue;
        benchmarks_[name.substr(0, name.find("/iterations:"))] = one;
      }
    std::ifstream rings(folder + "/ring.json");
    for (std::string line; std::getline(rings, line);) {
      const json one = json::parse(line);
      rings_[fmt::format("{}x{}", one.at("ranks").get<int>(), one.at("tokens_per_rank").get<int>())] = one;
    }
    peers_ = parsed(folder + "/peers.json");
  }

  Figure counter(const std::string& benchmark, const std::string& what) const {
    const auto found = benchmarks_.find(benchmark);
    return found == benchmarks_.end() ? Figure() : number(found->second, what);
  }
  Figure ring(const std::string& name, const std::string& what) const {
    const auto found = rings_.find(name);
    return found == rings_.end() ? Figure() : number(found->second, what);
  }
  Figure peer(const std::string& what) const { return number(peers_.value("figures", json::object()), what); }

 private:
  static json parsed(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str().empty() ? json::object() : json::parse(text.str());
  }
  static Figure number(const json& object, const std::string& key) {
    return object.contains(key) ? Figure(object.at(key).get<double>()) : Figure();
  }

  std::map<std::string, json> benchmarks_, rings_;
  json peers_;
};

Figure ratio(const Figure& a, const Figure& b) { return a && b && *b != 0 ? Figure(*a / *b) : Figure(); }

enum class Better { higher, lower };

struct Row {
  std::string id, what;
  Better better;
  Figure floor, goal;  ///< absent: shown beside the others, without a bound
  Figure measured;
  std::string missing;  ///< why nothing was measured
};

constexpr char no_amx[] = "no AMX on this machine", no_peer[] = "peer not measured in this run (--peers)";

std::string attention(const std::string& kind, int depth, int tokens) {
  return fmt::format("attention_{}/D:{}/N:{}", kind, depth, tokens);
}
std::string step(const std::string& text) { return "step/" + text; }

void add_attention_rows(std::vector<Row>& rows, const Figures& f) {
  const auto rate = [&](int depth) { return f.counter(attention("plain", depth, 8192), "of_product"); };
  rows.push_back({"C1", "f32 attention / sgemm 2048, D=128, N=8192", Better::higher, 0.65, 0.80, rate(128), {}});
  rows.push_back({"C2", "the same, D=64", Better::higher, 0.58, 0.72, rate(64), {}});
  const auto amx = [&](const char* what) {
    return ratio(f.counter("attention_plain_amx/D:128/N:8192", what),
                 f.counter("product_bf16/n:2048/threads:2", "half_GFLOP/s"));
  };
  rows.push_back({"C3", "bf16 AMX forward / half of the bf16 product, D=128, N=8192", Better::higher, 0.50, 0.70,
                  amx("forward_GFLOP/s"), no_amx});
  rows.push_back({"C4", "the same, forward and backward", Better::higher, 0.40, 0.60, amx("GFLOP/s"), no_amx});

  const auto beside_plain = [&](const std::string& kind, int depth, int tokens) {
    return f.counter(attention(kind, depth, tokens), "over_plain");
  };
  rows.push_back({"C6",
                  "CoPE / plain, nothing saturated, D=128",
                  Better::lower,
                  1.5,
                  1.35,
                  beside_plain("cope_unsaturated", 128, 8192),
                  {}});
  rows.push_back({"C6", "the same, D=64", Better::lower, 1.8, 1.6, beside_plain("cope_unsaturated", 64, 8192), {}});
  rows.push_back({"C7", "CoPE / plain, AMX forward, nothing saturated, D=128", Better::lower, 2.6, 2.0,
                  f.counter("attention_cope_unsaturated_amx/D:128/N:8192", "forward_over_plain"), no_amx});
  rows.push_back({"C8",
                  "CoPE / plain, gates about 0.5, N=16K",
                  Better::lower,
                  1.15,
                  1.08,
                  beside_plain("cope_half", 64, 16384),
                  {}});
  rows.push_back({"C8", "the same, N=32K", Better::lower, 1.08, 1.04, beside_plain("cope_half", 64, 32768), {}});
  rows.push_back(
      {"C8", "beside it: gate bias -6, N=16K", Better::lower, {}, {}, beside_plain("cope_rare", 64, 16384), {}});
  rows.push_back(
      {"C8", "beside it: gate bias -6, N=32K", Better::lower, {}, {}, beside_plain("cope_rare", 64, 32768), {}});
  rows.push_back({"C8h",
                  "hierarchical CoPE / plain, N=16K",
                  Better::lower,
                  1.15,
                  1.08,
                  beside_plain("hierarchical", 64, 16384),
                  {}});
  rows.push_back({"C8h", "the same, N=64K", Better::lower, 1.08, 1.04, beside_plain("hierarchical", 64, 65536), {}});
  rows.push_back({"C9", "PyTorch eager CoPE / fused, f32, N=4096, D=64", Better::higher, 8, 12,
                  ratio(f.peer("torch_cope_f32_s"), f.counter(attention("cope_half", 64, 4096), "both_s")), no_peer});
  rows.push_back({"C9", "beside it: bf16", Better::higher, 15, 25,
                  ratio(f.peer("torch_cope_bf16_s"), f.counter(attention("cope_half_bf16", 64, 4096), "both_s")),
                  no_peer});
  rows.push_back({"C10", "TAPE / plain, D=64, N=8192", Better::lower, 1.75, 1.55, beside_plain("tape", 64, 8192), {}});
  const Figure twice = beside_plain("tape", 64, 8192);
  rows.push_back(
      {"C10", "TAPE / two plain calls", Better::lower, 0.85, 0.75, twice ? Figure(*twice / 2) : Figure(), {}});
}

void add_ring_rows(std::vector<Row>& rows, const Figures& f) {
  const auto cost = [&](const char* name) { return f.ring(name, "ring_over_alone"); };
  const char* none = "no MPI in this run";
  rows.push_back(
      {"C11", "2 ranks / 1 rank of 2 threads, CPU time, c=4096", Better::lower, 1.08, 1.03, cost("2x4096"), none});
  rows.push_back({"C11", "the same, c=1024", Better::lower, 1.18, 1.10, cost("2x1024"), none});
  rows.push_back(
      {"C12", "4 ranks / 1 rank of 2 threads, CPU time, c=2048", Better::lower, 1.20, 1.08, cost("4x2048"), none});
  rows.push_back(
      {"C12", "8 ranks / 1 rank of 2 threads, CPU time, c=2048", Better::lower, 1.20, 1.08, cost("8x2048"), none});
  rows.push_back({"C13", "ordered_pull, 8 ranks: most / mean CPU time", Better::lower, 1.08, 1.03,
                  f.ring("8x2048", "ordered_pull_max_over_mean"), none});
  rows.push_back({"C13", "zigzag, 8 ranks: most / mean CPU time", Better::lower, 1.08, 1.03,
                  f.ring("8x2048", "zigzag_max_over_mean"), none});
}

void add_step_rows(std::vector<Row>& rows, const Figures& f) {
  const auto rate = [&](const std::string& text, const char* time) {  // Google Benchmark's times are in ms here
    const Figure ms = f.counter(step(text), time), tokens = f.counter(step(text), "tokens");
    return ms && tokens ? Figure(*tokens / *ms * 1e3) : Figure();
  };
  const std::string two = "rope/f32/layers:12/4x64/threads:2", both = "rope/f32/layers:12/1x1024/threads:2",
                    one = "rope/f32/layers:12/1x1024/threads:1", narrow = "rope/bf16/layers:12/1x1024/threads:1";
  rows.push_back({"C14", "tokens/s / llm.c, 124M f32, B4T64, 2 cores", Better::higher, 4, 6,
                  ratio(rate(two, "real_time"), f.peer("llmc_4x64_tokens_per_s")), no_peer});
  rows.push_back({"C14", "beside it: B1T1024", Better::higher, 7, 11,
                  ratio(rate(both, "real_time"), f.peer("llmc_1x1024_tokens_per_s")), no_peer});
  rows.push_back({"C15", "tokens/s / PyTorch, f32, T=1024, one core", Better::higher, 1.2, 1.7,
                  ratio(rate(one, "cpu_time"), f.peer("torch_f32_tokens_per_cpu_s")), no_peer});
  rows.push_back({"C15", "beside it: bf16", Better::higher, 1.1, 1.5,
                  ratio(rate(narrow, "cpu_time"), f.peer("torch_bf16_tokens_per_cpu_s")), no_peer});
  rows.push_back({"C16", "peak resident memory / PyTorch, B1T1024 f32", Better::lower, 0.75, 0.60,
                  ratio(f.counter(step(one), "peak_resident_bytes"), f.peer("torch_f32_peak_bytes")), no_peer});

  const auto bytes = [&](const char* recompute, int tokens) {
    return f.counter(fmt::format("memory/{}/rope/f32/layers:2/1x{}/threads:2", recompute, tokens), "step_bytes");
  };
  const auto grown = [&](const char* recompute, int from, int to) {
    const Figure a = bytes(recompute, from), b = bytes(recompute, to);
    return a && b ? Figure(*b - *a) : Figure();
  };
  // notes: L layers of inputs and one live layer of (6 + 6/g) C numbers, f32, C = 768, L = 2, g = 1.
  constexpr double formula = 4.0 * 768 * (2 + 12);
  rows.push_back({"C17",
                  "memory (32K - 16K) / (16K - 8K), block_full",
                  Better::lower,
                  2.15,
                  2.02,
                  ratio(grown("block_full", 16384, 32768), grown("block_full", 8192, 16384)),
                  {}});
  rows.push_back({"C17",
                  "bytes per token / formula, block_full",
                  Better::lower,
                  1.4,
                  1.15,
                  ratio(grown("block_full", 8192, 16384), 8192 * formula),
                  {}});
  rows.push_back(
      {"C17", "beside it: block", Better::lower, {}, {}, ratio(grown("block", 8192, 16384), 8192 * formula), {}});
  const auto cope = [&](const std::string& rest) {
    return ratio(f.counter(step("rope+cope/f32/" + rest), "cpu_time"), f.counter(step("rope/f32/" + rest), "cpu_time"));
  };
  rows.push_back({"C18",
                  "rope+cope / rope, whole step, T=1024",
                  Better::lower,
                  1.20,
                  1.08,
                  cope("layers:12/1x1024/threads:1"),
                  {}});
  rows.push_back(
      {"C18", "the same, 2 layers, T=8192", Better::lower, 1.20, 1.08, cope("layers:2/1x8192/threads:2"), {}});
}

std::string verdict(const Row& row) {
  if (!row.measured)
    return "not measured: " + (row.missing.empty() ? std::string("no figure in this run") : row.missing);
  if (!row.floor) return "";
  const auto reaches = [&](double bound) {
    return row.better == Better::higher ? *row.measured >= bound : *row.measured <= bound;
  };
  return reaches(*row.goal) ? "goal" : reaches(*row.floor) ? "floor" : "PAST ITS FLOOR";
}

int print(const std::vector<Row>& rows, const std::string& path) {
  const auto text = [](const Figure& x) { return x ? fmt::format("{:.2f}", *x) : std::string("-"); };
  int past = 0;
  json out = json::array();
  fmt::print("{:<5}{:<58}{:>8}{:>8}{:>10}  {}\n", "id", "ratio", "floor", "goal", "measured", "reached");
  for (const Row& row : rows) {
    past += verdict(row) == "PAST ITS FLOOR";
    fmt::print("{:<5}{:<58}{:>8}{:>8}{:>10}  {}\n", row.id, row.what, text(row.floor), text(row.goal),
               text(row.measured), verdict(row));
    json one{{"id", row.id}, {"ratio", row.what}, {"reached", verdict(row)}};
    for (const auto& [name, value] : {std::pair{"floor", row.floor}, {"goal", row.goal}, {"measured", row.measured}})
      if (value) one[name] = *value;
    out.push_back(one);
  }
  if (!path.empty()) std::ofstream(path) << out.dump(1) << "\n";
  return past > 0 ? 1 : 0;
}

}  // namespace
}  // namespace capstan::tests

int main(int count, char** words) {
  using namespace capstan::tests;
  if (count < 2) {
    fmt::print(stderr, "bench_table FOLDER [JSON]\n");
    return 2;
  }
  const Figures figures(words[1]);
  std::vector<Row> rows;
  add_attention_rows(rows, figures);
  add_ring_rows(rows, figures);
  add_step_rows(rows, figures);
  return print(rows, count > 2 ? words[2] : "");
}
