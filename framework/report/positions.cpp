#include "framework/report/positions.h"

#include <cmath>
#include <complex>
#include <limits>
#include <numbers>

#include "framework/files.h"
#include "kernels/host_view.h"

namespace capstan::framework {

namespace {

constexpr double nothing = std::numeric_limits<double>::quiet_NaN();

std::vector<double> doubles(const View& view) {
  std::vector<double> out(std::size_t(view.elements()));
  kernels::with_real(view.type(), [&](auto real) {
    using Real = decltype(real);
    const Real* from = view.as<Real>();
    for (double& x : out) x = double(*from++);
  });
  return out;
}

/// u_ij, the gate's argument, from gate queries [n, H, D] and gate keys [n, G, D].
struct GateArguments {
  std::vector<double> q, k;
  std::int64_t heads, kv_heads, size;

  explicit GateArguments(const parallel::RingInputs& in)
      : q(doubles(in.terms.gate_q[0] ? in.terms.gate_q[0] : in.q)), k(doubles(in.gates_on_values   ? in.v
                                                                              : in.terms.gate_k[0] ? in.terms.gate_k[0]
                                                                                                   : in.k)),
        heads(in.q.dim(2)), kv_heads(in.k.dim(2)), size(in.q.dim(3)) {}

  double operator()(std::int64_t head, std::int64_t query, std::int64_t key) const {
    const double* a = q.data() + (query * heads + head) * size;
    const double* b = k.data() + (key * kv_heads + head / (heads / kv_heads)) * size;
    double sum = 0;
    for (std::int64_t d = 0; d < size; ++d) sum += a[d] * b[d];
    return sum / std::sqrt(double(size));
  }
};

/// p_ij = Σ_{k=j..i} g_ik, from the query back.
LayerGates gates_of(int layer, const parallel::RingInputs& in, const kernels::GateRule& rule) {
  const GateArguments u(in);
  const std::int64_t n = in.q.dim(1);
  LayerGates out{layer, u.heads, n, double(in.terms.table[0].dim(3) - 1), {}, {}};
  out.gate.assign(std::size_t(u.heads * n * n), nothing);
  out.position = out.gate;
  for (std::int64_t h = 0; h < u.heads; ++h)
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t first =
          rule.block > 0 ? std::max<std::int64_t>(0, (i / rule.block - rule.window + 1) * rule.block) : 0;
      double position = 0;
      for (std::int64_t j = i; j >= first; --j) {
        const double gate = rule.floor + (1 - rule.floor) / (1 + std::exp(-u(h, i, j)));
        const std::size_t at = std::size_t((h * n + i) * n + j);
        position += gate;
        out.gate[at] = gate;
        out.position[at] = position;
      }
    }
  return out;
}

/// z and layer 0's state [n, G, D], rotate-half pairs (kernels/rotary.h).
LayerStates states_of(int layer, const View& z, const std::vector<double>& first) {
  const std::int64_t n = z.dim(0), heads = z.dim(1), half = z.dim(2) / 2;
  const std::vector<double> state = doubles(z);
  LayerStates out{layer, std::vector<double>(std::size_t(n)), std::vector<double>(std::size_t(n))};
  for (std::int64_t t = 0; t < n; ++t) {
    double magnitude = 0, drift = 0;
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t f = 0; f < half; ++f) {
        const std::size_t at = std::size_t((t * heads + h) * 2 * half + f), imaginary = at + std::size_t(half);
        const std::complex<double> now(state[at], state[imaginary]), rope(first[at], first[imaginary]);
        magnitude += std::abs(now);
        drift += std::abs(std::arg(now * std::conj(rope)));
      }
    out.magnitude[std::size_t(t)] = magnitude / double(heads * half);
    out.drift[std::size_t(t)] = drift / double(heads * half) * 180 / std::numbers::pi;
  }
  return out;
}

Batch batch_of(const Model& model, const std::vector<std::int32_t>& ids) {
  const std::int64_t n = std::int64_t(ids.size());
  const Shape shape{1, n};
  const Device device = model.device();
  Batch batch{n,
              model.position().length ? model.position().length : n,
              Tensor(shape, DType::i32, device),
              Tensor(shape, DType::i32, device),
              Tensor(shape, DType::i64, device),
              Tensor(shape, DType::i64, device),
              Tensor(shape, DType::i64, device),
              {}};
  for (std::int64_t t = 0; t < n; ++t) {
    batch.tokens.as<std::int32_t>()[t] = ids[std::size_t(t)];
    batch.targets.as<std::int32_t>()[t] = t + 1 < n ? ids[std::size_t(t + 1)] : -1;
    batch.index.as<std::int64_t>()[t] = batch.position.as<std::int64_t>()[t] = t;
  }
  return batch;
}

}  // namespace

TextPositions text_positions(Model& model, const std::vector<std::int32_t>& ids) {
  const std::int64_t n = std::int64_t(ids.size()), tile = 64;
  CAPSTAN_CHECK(n >= 2 && n <= longest_report_text, "{} tokens", n);
  const auto self = parallel::make_self_communicator();
  const parallel::Ring ring = model.make_ring(*self, n, tile);
  const Batch batch = batch_of(model, ids);
  TextPositions out;

  // Losses, and the states that enter the layers, which a pass keeps anyway.
  const Pass pass = model.forward(ring, batch, tile, Keep::inputs);
  const std::vector<double> nll = kernels::host_values<double>(pass.nll);
  out.nll.push_back(nothing);
  out.nll.insert(out.nll.end(), nll.begin(), nll.end() - 1);
  if (model.encoding().claims().state) {
    const std::vector<double> first = doubles(pass.blocks.front().z);
    for (std::size_t layer = 0; layer < pass.blocks.size(); ++layer)
      out.states.push_back(states_of(int(layer), pass.blocks[layer].z, first));
  }

  // Gates: the attention of each layer as ever, with a look at what goes in.
  SequenceContext context{1, n, batch.rows(), {}, nullptr, tile, {}};
  context.attend = [&](int layer, const parallel::RingInputs& in, const kernels::AttentionSettings& settings,
                       kernels::AttentionStats* stats) {
    if (settings.gates[0].gates == kernels::Gates::tokens) out.gates.push_back(gates_of(layer, in, settings.gates[0]));
    return ring_attention_forward(ring, in, settings, stats);
  };
  if (model.encoding().claims().gates) model.hidden(context, batch.tokens, batch.declared_length);
  return out;
}

std::vector<std::int32_t> report_tokens(const Tokenizer& tokenizer, std::int32_t bos, std::int64_t vocabulary,
                                        const std::string& text, std::int64_t most) {
  std::vector<std::int32_t> ids = tokenizer.encode(text);
  if (bos >= 0) ids.insert(ids.begin(), bos);
  if (std::int64_t(ids.size()) > most) ids.resize(std::size_t(most));
  if (ids.size() < 2) fail(ExitCode::bad_data, "the text has {} token(s); maps need at least 2", ids.size());
  for (const std::int32_t id : ids)
    if (id < 0 || id >= vocabulary)
      fail(ExitCode::bad_data, "the tokenizer gives id {}, the model knows ids 0 to {}", id, vocabulary - 1);
  return ids;
}

std::vector<std::string> token_names(const Tokenizer& tokenizer, std::int32_t bos,
                                     const std::vector<std::int32_t>& ids) {
  std::vector<std::string> names;
  std::string before;
  for (std::size_t t = 0; t < ids.size(); ++t) {
    if (ids[t] == bos) {
      names.push_back("BOS");
      continue;
    }
    const std::string all = tokenizer.decode({ids.begin(), ids.begin() + std::ptrdiff_t(t) + 1});
    std::string added = all.compare(0, before.size(), before) == 0 ? all.substr(before.size()) : "…", shown;
    for (const char c : added) shown += c == ' ' ? "·" : c == '\n' ? "⏎" : std::string(1, c);
    names.push_back(shown.empty() ? "∅" : printable(shown, 10));
    before = all;
  }
  return names;
}

}  // namespace capstan::framework
