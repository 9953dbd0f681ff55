#include <array>
#include <sstream>

#include "framework/encoding.h"

namespace capstan::framework {

namespace {

struct Entry {
  const char* name;
  std::unique_ptr<Encoding> (*make)(const PositionConfig&, const EncodingShape&);
};

/// The table: one line per file of encodings/.
constexpr std::array table{
    Entry{"none", make_none},
    Entry{"rope", make_rope},
    Entry{"cope", make_cope},
    Entry{"tape", make_tape},
};

using Parts = std::vector<std::unique_ptr<Encoding>>;

/// rope+cope: each hook goes to the part that has it.
class Composed : public Encoding {
 public:
  explicit Composed(Parts parts)
      : parts_(std::move(parts)), rotating_(&nothing_), scoring_(&nothing_), stateful_(&nothing_) {
    for (const auto& part : parts_) {
      if (part->rotates()) rotating_ = part.get();
      if (part->term() != kernels::TermKind::none) scoring_ = part.get();
      if (part->has_state()) stateful_ = part.get();
    }
  }
  void declare(Parameters& parameters) override {
    for (const auto& part : parts_) part->declare(parameters);
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
  bool rotates() const override { return rotating_->rotates(); }
  void rotate(int layer, const View& q_out, const View& k_out, const View& q, const View& k, const View& z) override {
    rotating_->rotate(layer, q_out, k_out, q, k, z);
  }
  void rotate_backward(int layer, const View& dq, const View& dk, const View& dz, const View& q, const View& k,
                       const View& z) override {
    rotating_->rotate_backward(layer, dq, dk, dz, q, k, z);
  }
  Tensor prepare(int layer, const View& q) override { return scoring_->prepare(layer, q); }
  void prepare_backward(int layer, const View& dq, const View& dtable, const View& q) override {
    scoring_->prepare_backward(layer, dq, dtable, q);
  }
  kernels::TermKind term() const override { return scoring_->term(); }
  bool has_state() const override { return stateful_->has_state(); }
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
  Parts parts_;
  Encoding nothing_;
  Encoding *rotating_, *scoring_, *stateful_;
};

/// Two rotations, two score terms, or a part twice have no meaning together.
void check_parts(const Parts& parts, const std::string& kind) {
  int rotating = 0, scoring = 0, stateful = 0;
  for (const auto& part : parts) {
    rotating += part->rotates();
    scoring += part->term() != kernels::TermKind::none;
    stateful += part->has_state();
  }
  if (rotating > 1 || scoring > 1 || stateful > 1)
    fail(ExitCode::config,
         "position.kind = {}: at most one part may rotate q and k, one may add a score term, one may carry a state",
         kind);
}

}  // namespace

std::vector<std::string> encoding_names() {
  std::vector<std::string> names;
  for (const Entry& entry : table) names.push_back(entry.name);
  return names;
}

std::unique_ptr<Encoding> make_encoding(const PositionConfig& position, const EncodingShape& shape) {
  Parts parts;
  std::stringstream text(position.kind);
  for (std::string name; std::getline(text, name, '+');) {
    const auto* entry = std::find_if(table.begin(), table.end(), [&](const Entry& e) { return name == e.name; });
    if (entry == table.end())
      fail(ExitCode::config, "position.kind = {}: no encoding is called {}; there are {}, joined by +", position.kind,
           name, fmt::join(encoding_names(), ", "));
    parts.push_back(entry->make(position, shape));
  }
  check_parts(parts, position.kind);
  return std::make_unique<Composed>(std::move(parts));
}

}  // namespace capstan::framework
