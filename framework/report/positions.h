#pragma once
// What an encoding makes of a text, token by token, for `capstan report --text`: CoPE's gates and positions, TAPE's states. Gates and
// positions are computed here in double from the arrays that each layer hands to its attention, by the formulas at the top of
// kernels/score_terms.h, all pairs at once: for texts of a hundred tokens.

#include <cstdint>
#include <string>
#include <vector>

#include "framework/model.h"
#include "framework/tokenizer.h"

namespace capstan::framework {

/// Gated sum 0 of one layer, [H, n, n] each: query row, then key. NaN where there is no gate (later keys; with hierarchical CoPE
/// also keys of blocks beyond the window).
struct LayerGates {
  int layer = 0;
  std::int64_t heads = 0, tokens = 0;
  double last_position = 0;            ///< P: the table ends here, and positions beyond count as P
  std::vector<double> gate, position;  ///< σ(u_ij); p_ij = Σ_{k=j..i} gate_ik, not cut at P
  double at(const std::vector<double>& values, std::int64_t head, std::int64_t query, std::int64_t key) const {
    return values[std::size_t((head * tokens + query) * tokens + key)];
  }
};

/// TAPE's state that enters one layer, per token the mean over heads and frequencies.
struct LayerStates {
  int layer = 0;
  std::vector<double> magnitude;  ///< |z|
  std::vector<double> drift;      ///< |angle between z and layer 0's z, which is RoPE's|, degrees
};

struct TextPositions {
  std::string model;                ///< as named on the page
  std::vector<std::string> tokens;  ///< as read, one text each
  std::vector<double> nll;          ///< of each token given those before it; NaN for the first
  std::vector<LayerGates> gates;    ///< layers with gates
  std::vector<LayerStates> states;  ///< of TAPE: all layers
};

/// The longest text: maps hold all pairs.
constexpr std::int64_t longest_report_text = 128;

/// The first `most` tokens of a text, with BOS where the model has one; ids without names. Error (bad_data): an id that the model
/// does not know, or fewer than two tokens.
std::vector<std::int32_t> report_tokens(const Tokenizer& tokenizer, std::int32_t bos, std::int64_t vocabulary,
                                        const std::string& text, std::int64_t most);
/// What each id adds to the text; spaces as "·", BOS by its name.
std::vector<std::string> token_names(const Tokenizer& tokenizer, std::int32_t bos,
                                     const std::vector<std::int32_t>& ids);

/// For a model in f32 or f64 on the host.
TextPositions text_positions(Model& model, const std::vector<std::int32_t>& ids);

}  // namespace capstan::framework
