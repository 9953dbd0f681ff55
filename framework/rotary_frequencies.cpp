#include "framework/rotary_frequencies.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace capstan::framework {

namespace {

constexpr double pi = std::numbers::pi;

std::vector<double> plain(double theta, std::int64_t head_size) {
  std::vector<double> frequency;
  for (std::int64_t f = 0; f < head_size / 2; ++f)
    frequency.push_back(std::pow(theta, -2.0 * double(f) / double(head_size)));
  return frequency;
}

/// Index f (real) whose phase turns `turns` times in `length` tokens.
double index_of_turns(double turns, std::int64_t head_size, double theta, double length) {
  return double(head_size) * std::log(length / (turns * 2 * pi)) / (2 * std::log(theta));
}

void scale_yarn(RotaryFrequencies& out, const PositionConfig& p, std::int64_t head_size, double length) {
  const double low = std::max(std::floor(index_of_turns(p.beta_fast, head_size, p.theta, length)), 0.0);
  double high = std::min(std::ceil(index_of_turns(p.beta_slow, head_size, p.theta, length)), double(head_size - 1));
  if (high == low) high += 0.001;  // as the reference does: avoids 0 / 0
  for (std::size_t f = 0; f < out.frequency.size(); ++f) {
    const double interpolated = std::clamp((double(f) - low) / (high - low), 0.0, 1.0);
    out.frequency[f] *= (1 - interpolated) + interpolated / p.factor;
  }
  out.amplitude = p.attention_factor > 0 ? p.attention_factor : 0.1 * std::log(p.factor) + 1;
}

void scale_llama3(RotaryFrequencies& out, const PositionConfig& p, double length) {
  const double longest_kept = length / p.high_freq_factor, shortest_scaled = length / p.low_freq_factor;
  for (double& frequency : out.frequency) {
    const double wavelength = 2 * pi / frequency;
    if (wavelength > shortest_scaled) {
      frequency /= p.factor;
    } else if (wavelength >= longest_kept) {
      const double smooth = (length / wavelength - p.low_freq_factor) / (p.high_freq_factor - p.low_freq_factor);
      frequency *= (1 - smooth) / p.factor + smooth;
    }
  }
}

}  // namespace

double rotary_base(const PositionConfig& p, std::int64_t head_size, std::int64_t original_length,
                   std::int64_t total_length) {
  double factor = p.scaling == "ntk" ? p.factor : 1;
  if (p.scaling == "dynamic" && total_length > original_length)
    factor = p.factor * double(total_length) / double(original_length) - (p.factor - 1);
  // Two channels turn by the position itself, whatever the base is.
  return head_size > 2 ? p.theta * std::pow(factor, double(head_size) / double(head_size - 2)) : p.theta;
}

RotaryFrequencies rotary_frequencies(const PositionConfig& p, std::int64_t head_size, std::int64_t original_length,
                                     std::int64_t total_length) {
  RotaryFrequencies out;
  out.frequency = plain(rotary_base(p, head_size, original_length, total_length), head_size);
  const double original = double(original_length);
  if (p.scaling == "linear") {
    for (double& frequency : out.frequency) frequency /= p.factor;
  } else if (p.scaling == "yarn") {
    scale_yarn(out, p, head_size, original);
  } else if (p.scaling == "llama3") {
    scale_llama3(out, p, original);
  }
  return out;
}

}  // namespace capstan::framework
