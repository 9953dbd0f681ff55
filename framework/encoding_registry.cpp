#include <algorithm>
#include <array>
#include <sstream>

#include "framework/encoding.h"
#include "parallel/ring_schedule.h"

namespace capstan::framework {

namespace {

struct Entry {
  const char* name;
  MakeEncoding* make;
};

/// The table: one line per file of encodings/.
constexpr std::array table{
    Entry{"none", make_none},
    Entry{"sinusoidal", make_sinusoidal},
    Entry{"learned", make_learned},
    Entry{"rope", make_rope},
    Entry{"xpos", make_xpos},
    Entry{"randomized", make_randomized},
    Entry{"relative", make_relative},
    Entry{"alibi", make_alibi},
    Entry{"t5", make_t5},
    Entry{"fire", make_fire},
    Entry{"cope", make_cope},
    Entry{"hierarchical_cope", make_hierarchical_cope},
    Entry{"forget", make_forget},
    Entry{"tape", make_tape},
};

using Parts = std::vector<std::unique_ptr<Encoding>>;

/// What each claim is called in messages.
struct ClaimName {
  bool Claims::*claim;
  const char* text;
};
constexpr std::array claim_names{
    ClaimName{&Claims::rotation, "a rotation of queries and keys"},
    ClaimName{&Claims::state, "a state"},
    ClaimName{&Claims::gates, "a sum of gates"},
    ClaimName{&Claims::offset, "offsets"},
    ClaimName{&Claims::relative, "logits by distance"},
    ClaimName{&Claims::distance, "a bias by distance"},
    ClaimName{&Claims::function, "a function of distance"},
    ClaimName{&Claims::positions, "a placing of positions"},
};

Claims operator|(Claims a, const Claims& b) {
  for (const ClaimName& c : claim_names) a.*c.claim = a.*c.claim || b.*c.claim;
  return a;
}

/// rope+cope: each hook goes to the parts that have it.
class Composed : public Encoding {
 public:
  explicit Composed(Parts parts) : parts_(std::move(parts)) {
    for (const auto& part : parts_) {
      if (part->claims().rotation) rotating_ = part.get();
      if (part->claims().state) stateful_ = part.get();
    }
  }
  Claims claims() const override {
    Claims all;
    for (const auto& part : parts_) all = all | part->claims();
    return all;
  }
  void declare(Parameters& parameters) override {
    for (const auto& part : parts_) part->declare(parameters);
  }
  void place(const View& position, const std::vector<std::uint64_t>& draws, std::int64_t length) override {
    for (const auto& part : parts_) part->place(position, draws, length);
  }
  void begin(const TokenRows& rows, std::int64_t total_length, Device device, DType type) override {
    for (const auto& part : parts_) part->begin(rows, total_length, device, type);
  }
  void embed(const View& x) override {
    for (const auto& part : parts_) part->embed(x);
  }
  void embed_backward(const View& dx) override {
    for (const auto& part : parts_) part->embed_backward(dx);
  }
  void rotate(int layer, Side side, const View& out, const View& x, const View& z) override {
    rotating_->rotate(layer, side, out, x, z);
  }
  void rotate_backward(int layer, Side side, const View& dx, const View& dz, const View& x, const View& z) override {
    rotating_->rotate_backward(layer, side, dx, dz, x, z);
  }
  Prepared prepare(int layer, const Projections& in) override {
    Prepared all;
    for (const auto& part : parts_) {
      Prepared one = part->prepare(layer, in);
      std::vector<Tensor*> from;
      one.each([&](Tensor& t) { from.push_back(&t); });
      auto next = from.begin();
      all.each([&](Tensor& t) {
        if (**next) t = std::move(**next);
        ++next;
      });
    }
    return all;
  }
  void prepare_backward(int layer, const Projections& d, const PreparedGradients& d_prepared,
                        const Projections& in) override {
    for (const auto& part : parts_) part->prepare_backward(layer, d, d_prepared, in);
  }
  Terms terms(int layer) const override {
    Terms all;
    for (const auto& part : parts_) {
      const Terms one = part->terms(layer);
      if (part->claims().gates) {
        all.gates = one.gates;
        all.gate_keys = one.gate_keys;
        all.rotated_gates = one.rotated_gates;
      }
      if (part->claims().offset) all.offset = one.offset;
      join(all.shared, one.shared);
    }
    return all;
  }
  kernels::SharedTerms shared_gradients(int layer) const override {
    kernels::SharedTerms all;
    for (const auto& part : parts_) join(all, part->shared_gradients(layer));
    return all;
  }
  std::int64_t block() const override {
    std::int64_t most = 1;
    for (const auto& part : parts_) most = std::max(most, part->block());
    return most;
  }
  Arithmetic arithmetic(int layer) const override {
    Arithmetic all;
    for (const auto& part : parts_) {
      const Arithmetic one = part->arithmetic(layer);
      all.per_token += one.per_token;
      all.per_pair += one.per_pair;
    }
    return all;
  }
  bool travels(int layer) const override { return stateful_->travels(layer); }
  Tensor first_state() override { return stateful_->first_state(); }
  void make_first_state(const View& z, const View& position) override { stateful_->make_first_state(z, position); }
  Tensor update(int layer, const View& z, const View& p, const View& m) override {
    return stateful_->update(layer, z, p, m);
  }
  void update_backward(int layer, const View& dz, const View& dp, const View& dm, const View& dz_next, const View& z,
                       const View& p, const View& m) override {
    stateful_->update_backward(layer, dz, dp, dm, dz_next, z, p, m);
  }

 private:
  static void join(kernels::SharedTerms& all, const kernels::SharedTerms& one) {
    if (one.slope) all.slope = one.slope;
    if (one.distance_table) all.distance_table = one.distance_table;
    if (one.fire.in || one.fire.out) all.fire = one.fire;
  }

  Parts parts_;
  Encoding nothing_;
  Encoding *rotating_ = &nothing_, *stateful_ = &nothing_;
};

/// The names of a kind. randomized alone places positions for nobody: it is RandPE over RoPE, as its users mean it.
std::vector<std::string> names_of(const std::string& kind) {
  std::vector<std::string> names;
  std::stringstream text(kind);
  for (std::string name; std::getline(text, name, '+');) names.push_back(name);
  if (names == std::vector<std::string>{"randomized"}) names.push_back("rope");
  if (kind.empty() || kind.back() == '+') names.emplace_back();
  return names;
}

Parts make_parts(const PositionConfig& position, const EncodingShape& shape) {
  Parts parts;
  for (const std::string& name : names_of(position.kind)) {
    const auto* entry = std::find_if(table.begin(), table.end(), [&](const Entry& e) { return name == e.name; });
    if (entry == table.end()) {
      const std::string near = nearest_name(name, encoding_names());
      fail(ExitCode::config, "position.kind = {}: no encoding is called '{}'{}; there are {}, joined by +",
           position.kind, name, near.empty() ? "" : fmt::format(", did you mean {}?", near),
           fmt::join(encoding_names(), ", "));
    }
    parts.push_back(entry->make(position, shape));
  }
  return parts;
}

/// Two rotations, two sums of gates, or a part twice have no meaning together.
void check_parts(const Parts& parts, const std::string& kind) {
  Claims all;
  for (const auto& part : parts) {
    const Claims one = part->claims();
    for (const ClaimName& c : claim_names)
      if (all.*c.claim && one.*c.claim)
        fail(ExitCode::config, "position.kind = {}: two of its parts have what only one may: {}", kind, c.text);
    all = all | one;
  }
  const std::vector<std::string> names = names_of(kind);
  for (const std::string& name : names)
    if (std::count(names.begin(), names.end(), name) > 1)
      fail(ExitCode::config, "position.kind = {}: {} stands there twice; take one out", kind, name);
}

}  // namespace

std::vector<std::string> encoding_names() {
  std::vector<std::string> names;
  for (const Entry& entry : table) names.emplace_back(entry.name);
  return names;
}

std::vector<EncodingKind> encoding_kinds() {
  return {
      {"none", "no positions but the causal mask", ""},
      {"sinusoidal", "sines and cosines added to the embedding", "1706.03762"},
      {"learned", "a learned vector per position added to the embedding", "1705.03122"},
      {"rope", "turns queries and keys by their positions; scalings: linear, NTK, dynamic NTK, YaRN, Llama 3",
       "2104.09864, 2306.15595, 2309.00071"},
      {"xpos", "RoPE whose channels decay with the distance", "2212.10554"},
      {"randomized", "RandPE: RoPE at random increasing positions", "2305.16843"},
      {"relative", "learned logits per clipped distance", "1803.02155"},
      {"alibi", "a fixed slope per head times the distance", "2108.12409"},
      {"t5", "a learned bias per head and distance bucket", "1910.10683"},
      {"fire", "a learned function of the distance", "2310.04418"},
      {"cope", "contextual positions: each query sums gates over the keys", "2405.18719"},
      {"rope+cope", "both; with a zero table bit for bit the RoPE model", "2405.18719"},
      {"cope+relative", "both", "2405.18719"},
      {"hierarchical_cope", "CoPE near, one gate per block of keys beyond", "docs/decisions.md"},
      {"hierarchical_cope", "the same, block gates not of the query", "docs/decisions.md", "block_gates", "token"},
      {"rope+hierarchical_cope", "both", "docs/decisions.md"},
      {"forget", "FoX: a forget gate per head and token", "2503.02130"},
      {"tape", "a state per token turns it, and is updated by the attention itself", "2501.00712"},
  };
}

std::unique_ptr<Encoding> make_encoding(const PositionConfig& position, const EncodingShape& shape) {
  Parts parts = make_parts(position, shape);
  check_parts(parts, position.kind);
  return std::make_unique<Composed>(std::move(parts));
}

Claims claims_of(const PositionConfig& position) {
  const EncodingShape any{1, 2, 1, 1, 2, 1, 1};
  return make_encoding(position, any)->claims();
}

std::string refuse_pair(const PositionConfig& position, const std::string& schedule) {
  if (parallel::keeps_key_order(schedule)) return {};
  const EncodingShape any{1024, 2, 1, 1, 2, 1, 1};
  const auto encoding = make_encoding(position, any);
  for (int layer = 0; layer < 1024; ++layer)
    for (const kernels::GateRule& rule : encoding->terms(layer).gates) {
      // Token gates of the row's own block stay in the row's own chunk, which every schedule begins with.
      const bool at_home = rule.gates == kernels::Gates::tokens && rule.window == 1;
      if (rule.gates != kernels::Gates::none && !at_home)
        return fmt::format(
            "grid.schedule = {} brings key chunks out of order, but position.kind = {} sums gates from near to far; "
            "choose "
            "grid.schedule = ordered_pull, which is as even",
            schedule, position.kind);
    }
  return {};
}

}  // namespace capstan::framework
