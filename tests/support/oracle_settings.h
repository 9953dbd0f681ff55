#pragma once
// Settings of the oracle (oracle_model.h): its own structs, so that it depends on nothing that it checks.

#include <cstdint>
#include <string>
#include <vector>

namespace capstan::tests {

/// The oracle itself, and what plain implementations of less precision give by the same formulas: in f32, and in f64 or f32 with
/// activations and their gradients rounded to bf16 where they are stored.
enum class OracleArithmetic : std::uint8_t { f64, f32, f64_stored_bf16, f32_stored_bf16 };

struct OracleModel {
  std::int64_t layers = 2, hidden_size = 16 /* C */, mlp_size = 12 /* F */, heads = 4 /* H */, kv_heads = 2 /* G */,
               head_size = 4 /* D */, vocabulary = 13 /* V */;
  double norm_eps = 1e-5;
  bool tied = true;            ///< output projection = token embedding
  std::string norm = "pre";    ///< pre, post
  std::string bias = "false";  ///< linear layers with a bias: false, true (all), attention, mlp
  std::string mlp = "swiglu";  ///< swiglu, geglu, gelu
  OracleArithmetic arithmetic = OracleArithmetic::f64;
};

/// The encoding. What a part does not use is ignored.
struct OraclePosition {
  /// They add up; empty: none. Known are sinusoidal, learned, rope, xpos, relative, alibi, t5, fire, cope,
  /// hierarchical_cope, forget, tape.
  std::vector<std::string> parts;

  double theta = 10000;
  std::vector<double> frequency;  ///< [D/2] of rope, xpos and tape, any scaling included; empty: theta^(-2f/D)
  double amplitude = 1;           ///< of the phases (yarn)

  double xpos_scale = 512, centre = 0;

  std::int64_t learned_length = 0;     ///< rows of model.position.embedding
  std::int64_t relative_distance = 8;  ///< R: the largest distance with a row of its own
  std::int64_t t5_buckets = 32, t5_max_distance = 128;
  std::int64_t fire_width = 32;

  std::int64_t cope_positions = 64;    ///< P + 1
  std::int64_t cope_every = 1;         ///< CoPE (also hierarchical) only in layers with (layer + 1) % every = 0
  std::string cope_gate = "keys";      ///< keys, separate, values
  double cope_gate_floor = 0;          ///< e
  std::string cope_table = "learned";  ///< learned, alibi
  bool cope_gate_rotated = false;      ///< gates see rotated queries and keys, if there is a rotation
  bool cope_table_scaled = false;      ///< λ = 1/√D instead of 1
  bool cope_table_shared = false;      ///< model.position.table instead of one per layer
  bool relative_shared = false;        ///< model.position.relative instead of one per layer

  std::int64_t block_size = 4 /* B */, block_window = 1 /* w, in blocks */, block_positions = 8 /* P_b + 1 */;
  std::string block_gate = "keys";  ///< keys: from queries and mean block keys (H-B); tokens: of the block alone (H-C)

  bool tape_attention = true, tape_mlp = true;  ///< the two paths of the update
  bool tape_scalars = false;                    ///< alpha [G] instead of [G, G]
  std::int64_t tape_width = 8;                  ///< I

  bool has(const std::string& part) const {
    for (const std::string& each : parts)
      if (each == part) return true;
    return false;
  }
};

}  // namespace capstan::tests
