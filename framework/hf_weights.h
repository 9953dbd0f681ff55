#pragma once
// Weights of Hugging Face folders, between safetensors files and Parameters. Tensor names are the same on both sides;
// see Parameters. An encoding's own parameters lie in the file beside them, under their names.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "framework/checkpoint.h"
#include "framework/parameters.h"
#include "framework/safetensors.h"

namespace capstan::framework {

struct ImportedWeights {
  std::vector<SourceTensor> source;   ///< what the values came from, in the file's order
  std::vector<std::string> left_out;  ///< tensors that only repeat what the configuration says (rotary_emb.inv_freq)
};

/// Names and shapes of `parameters` (which need not be allocated) against the tensors. Error: bad_data naming the
/// tensor.
void check_hf_shapes(const Parameters& parameters, const SafetensorsModel& model, const std::string& folder);

/// Fills all values of `parameters` (allocated) from F32, F16 or BF16 tensors, exactly. Refused by name, as bad_data:
/// tensors that are missing, unknown, of another shape or type, or not finite; with `tied` an lm_head.weight that
/// differs from the embedding.
ImportedWeights load_hf_weights(Parameters& parameters, const SafetensorsModel& model, const std::string& folder,
                                const PositionConfig& position, bool tied);

/// All of a checkpoint's values as tensors of a file, in the source's order (else by name). Their type is F32, or the
/// source's own if every value is exact in it: so what was imported and not trained comes out byte for byte. Adapters are
/// merged into their weights. `type`: "auto", as above; "f32"; "bf16", every value rounded to the nearest (ties to even).
std::vector<SafetensorToWrite> hf_tensors(const Checkpoint& checkpoint, const std::string& type = "auto");

}  // namespace capstan::framework
