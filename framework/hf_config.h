#pragma once
// Hugging Face's config.json of Llama-type models, read into this program's own options and written back.

#include <cstdint>
#include <string>
#include <vector>

#include "framework/config.h"

namespace capstan::framework {

struct HfConfig {
  ModelConfig model;
  PositionConfig position;
  int bos = -1;          ///< bos_token_id; -1: none
  std::vector<int> eos;  ///< eos_token_id, one or several
  std::string json;      ///< the original text
};

/// Reads config.json's text; `name` begins error lines. A field that would change the model's results and cannot be
/// honoured (sliding windows, other activations, unknown rope types, quantisation, …) is refused by name;
/// values out of range too. Fields that do not matter for the results are kept in `json`. Errors: bad_data.
HfConfig parse_hf_config(const std::string& json, const std::string& name);
HfConfig read_hf_config(const std::string& path);  ///< errors: also io

/// The config.json of a model that began as `original_json` (empty: from scratch) and is now as `model` and `position`
/// say, trained up to max_length tokens (0: model.max_length). Every original field stays, in its order; only what
/// differs changes. What Hugging Face has no field for goes into the objects `capstan_position` and `capstan_block`, so that
/// parse_hf_config() gives the same model and position back; each is written only when it is needed (not for rope with a
/// scaling that Hugging Face knows, not for a gated MLP between norms that come first). A model that Hugging Face's Llama would
/// compute otherwise has model_type capstan-llama or capstan-mistral.
std::string updated_hf_config(const std::string& original_json, const ModelConfig& model,
                              const PositionConfig& position, std::int64_t max_length);

}  // namespace capstan::framework
