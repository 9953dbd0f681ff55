#pragma once
// The whole model from its formulas, on whole sequences, in f64: no tiles, no shards, no kernels. Gradients come from a
// tape over scalars (oracle_tape.h), not by hand. With D = head size, s = 1/√D, rms(x; w) = w x / √(mean x² + eps):
//
//   x = E[token] + what the encoding adds
//   per layer:  xn = rms(x);  q, k, v = W_q xn, W_k xn, W_v xn;  query head h uses key head g(h) = h / (H/G)
//               A_ij = softmax over j <= i of the same document of  s q'_i·k'_j + bias_ij;  x += W_o Σ_j A_ij v_j
//               m = W_down(silu(W_gate xm) * W_up xm), xm = rms(x);  x += m
//   loss = Σ over counted tokens of  ln Σ exp(logit) - logit[target],  logits = E_out rms(x)
//
// Other blocks: norm = post (1706.03762, §3.1)  q, k, v of x itself;  x = rms(x + W_o …);  x = rms(x + m), m of x;  logits = E_out x
//               mlp = geglu (2002.05202)        gelu in silu's place, gelu(a) = a Φ(a)
//               mlp = gelu                      m = W_down gelu(W_up xm)
//               bias                            every W x is W x + b
//
// q', k' after rotation, bias from the encoding: see oracle_attention.h.

#include <map>
#include <string>
#include <vector>

#include "tests/support/oracle_settings.h"

namespace capstan::tests {

using OracleParameters = std::map<std::string, std::vector<double>>;

struct OracleSequence {
  std::vector<int> tokens, targets;              ///< target -1 counts nothing
  std::vector<std::int64_t> position, document;  ///< a document is a run of tokens
};

/// Rows of all sequences stand one after the other.
struct OracleResult {
  double loss = 0;             ///< sum over the counted tokens of all sequences
  std::vector<double> nll;     ///< [tokens]; 0 where not counted
  OracleParameters gradients;  ///< of the loss, by all parameters
  std::vector<std::vector<double>>
      states;  ///< tape: z entering each layer, [tokens, G, D] (re in the first half of D); else empty
  std::vector<double> input_gradient;  ///< by x entering layer 0, [tokens, C]
};

/// Name and extents of every parameter of the model.
std::map<std::string, std::vector<std::int64_t>> oracle_shapes(const OracleModel& model,
                                                               const OraclePosition& position);

/// Throws std::invalid_argument if settings contradict, or `parameters` are not exactly those of oracle_shapes().
OracleResult oracle(const OracleModel& model, const OraclePosition& position, const OracleParameters& parameters,
                    const std::vector<OracleSequence>& sequences);

/// The loss alone, in extended precision: for difference quotients.
long double oracle_loss(const OracleModel& model, const OraclePosition& position, const OracleParameters& parameters,
                        const std::vector<OracleSequence>& sequences);

std::vector<double> oracle_alibi_slopes(std::int64_t heads);
/// T5's bucket of distance d. A d whose logarithm hits a bound exactly belongs to the upper bucket, whatever rounding
/// says.
std::int64_t oracle_t5_bucket(std::int64_t d, std::int64_t buckets, std::int64_t max_distance);

// TAPE as tensors: per token, head and frequency a block e ∈ R^(2 x R), in memory [tokens, G, D/2, 2, R]. With
// z = a + i b the block is ((a, b), (-b, a)), R = 2. Pairs q_f, k_f ∈ R² are those of the complex form: f and f + D/2.

struct TapeTensorShape {
  std::int64_t tokens = 0, heads = 0 /* H */, groups = 0 /* G */, frequencies = 0 /* D/2 */, columns = 2 /* R */;
};

/// e of the complex state [tokens, G, D].
std::vector<double> tape_tensor(const TapeTensorShape& shape, const std::vector<double>& z);

/// logit_hij = Σ_f q_f^T e_i e_j^T k_f for all pairs, [H, tokens, tokens]; q [tokens, H, D], k [tokens, G, D].
std::vector<double> tape_tensor_logits(const TapeTensorShape& shape, const std::vector<double>& q,
                                       const std::vector<double>& k, const std::vector<double>& e);

/// What the update of one layer takes.
struct TapeTensorUpdate {
  std::vector<double> weights;   ///< A, [H, tokens, tokens]
  std::vector<double> alpha;     ///< [G, G]
  std::vector<double> up, down;  ///< [I, G], [G, I]
  std::vector<double> gate;      ///< silu(W_x m), [tokens, I]
};

/// ec = e + alpha p,  p_i = mean over a group's heads of Σ_j A_ij e_j;  e' = ec + W_d (gate * (W_u ec)). Heads mix, the
/// elements of a block do not.
std::vector<double> tape_tensor_update(const TapeTensorShape& shape, const std::vector<double>& e,
                                       const TapeTensorUpdate& update);

}  // namespace capstan::tests
