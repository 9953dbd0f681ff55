#pragma once
#include <cstdint>
#include <vector>

#include "framework/config.h"

namespace capstan::framework {

/// What a RoPE scaling makes of the phases: exp(i position frequency[f]) · amplitude, f = 0 … D/2 - 1.
struct RotaryFrequencies {
  std::vector<double> frequency;
  double amplitude = 1;
};

/// frequency[f] = theta^(-2f/D), then by position.scaling (s = factor, L0 = original length, L = total_length, the *global* or
/// declared length of the sequence, never a shard's):
///   linear   frequency / s                                     (position interpolation, arXiv 2306.15595 §2.2)
///   ntk      theta' = theta s^(D/(D-2))                         ("NTK-aware", arXiv 2309.00071 §3.1)
///   dynamic  as ntk with s' = s L/L0 - (s - 1) once L > L0      (arXiv 2309.00071 §3.3; Hugging Face's formula)
///   yarn     per f between frequency and frequency / s by how often it turns in L0 (arXiv 2309.00071 §3.2-3.4), amplitude 0.1 ln s + 1
///   llama3   wavelengths above L0/low divided by s, below L0/high kept, between blended (Llama 3.1's published rule)
RotaryFrequencies rotary_frequencies(const PositionConfig& position, std::int64_t head_size,
                                     std::int64_t original_length, std::int64_t total_length);

/// The base that theta stands for above: theta' where the scaling changes it.
double rotary_base(const PositionConfig& position, std::int64_t head_size, std::int64_t original_length,
                   std::int64_t total_length);

}  // namespace capstan::framework
