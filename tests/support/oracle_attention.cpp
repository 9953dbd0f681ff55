#include "tests/support/oracle_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace capstan::tests {

template <class Real>
OracleAttention<Real>::OracleAttention(Context& context, std::int64_t layer, const Rows& xn, const Rows& z)
    : context_(context), tape_(context.tape), model_(context.model), position_(context.position),
      sequence_(context.sequence), layer_(layer), depth_(model_.head_size), scale_(1 / std::sqrt(Real(depth_))),
      xn_(xn), z_(z) {
  choose_biases();
  slopes_ = oracle_alibi_slopes(model_.heads);
  q_ = context_.stored(context_.linear(layer, "self_attn.q_proj", xn));
  k_ = context_.stored(context_.linear(layer, "self_attn.k_proj", xn));
  v_ = context_.stored(context_.linear(layer, "self_attn.v_proj", xn));
  turned_q_ = context_.stored(rotated(q_, true));
  turned_k_ = context_.stored(rotated(k_, false));
  if (cope_) prepare_cope();
  if (blocks_) prepare_blocks();
  if (position_.has("forget")) {
    forget_ = context_.times(own("forget"), xn);
    const Ids bias = own("forget_bias");
    for (Row& row : forget_)
      for (std::size_t h = 0; h < row.size(); ++h) row[h] = tape_.log_sigmoid(tape_.add(row[h], bias[h]));
  }
}

template <class Real> void OracleAttention<Real>::choose_biases() {
  const bool active = (layer_ + 1) % position_.cope_every == 0;
  blocks_ = active && position_.has("hierarchical_cope");
  cope_ = blocks_ || (active && position_.has("cope"));
  if (position_.has("relative")) biases_.push_back(&OracleAttention::add_relative);
  if (position_.has("alibi")) biases_.push_back(&OracleAttention::add_alibi);
  if (position_.has("t5")) biases_.push_back(&OracleAttention::add_t5);
  if (position_.has("fire")) biases_.push_back(&OracleAttention::add_fire);
  if (position_.has("forget")) biases_.push_back(&OracleAttention::add_forget);
  if (cope_) biases_.push_back(&OracleAttention::add_cope);
  if (blocks_) biases_.push_back(&OracleAttention::add_blocks);
}

/// x after rope or xpos and after tape's state.
template <class Real> auto OracleAttention<Real>::rotated(const Rows& x, bool query) -> Rows {
  const bool xpos = position_.has("xpos"), rope = position_.has("rope") || xpos, tape = position_.has("tape");
  const std::int64_t half = depth_ / 2;
  Rows y = x;
  for (std::size_t t = 0; t < y.size(); ++t)
    for (std::int64_t at = 0; at < std::int64_t(y[t].size()); ++at) {
      const std::int64_t head = at / depth_, f = at % depth_, g = query ? head * model_.kv_heads / model_.heads : head;
      if (f >= half) continue;
      Id &re = y[t][at], &im = y[t][at + half];
      if (rope) {
        const Real position = Real(sequence_.position[t]), angle = position * context_.frequencies[f];
        const Real zeta = (2 * Real(f) / Real(depth_) + Real(0.4L)) / Real(1.4L);
        const Real power = (query ? 1 : -1) * (position - Real(position_.centre)) / Real(position_.xpos_scale);
        const Real size = Real(position_.amplitude) * (xpos ? std::pow(zeta, power) : Real(1));
        const Real c = size * std::cos(angle), s = size * std::sin(angle);
        const Id real = tape_.linear(re, c, im, -s);
        im = tape_.linear(re, s, im, c);
        re = real;
      }
      if (tape) {
        const Id a = z_[t][g * depth_ + f], b = z_[t][g * depth_ + f + half];
        const Id real = tape_.products(re, a, im, b, -1);
        im = tape_.products(re, b, im, a, 1);
        re = real;
      }
    }
  return y;
}

template <class Real> void OracleAttention<Real>::prepare_cope() {
  const bool turned = position_.cope_gate_rotated && position_.cope_gate != "values";
  if (position_.cope_gate == "keys") keys_ = turned ? turned_k_ : k_;
  if (position_.cope_gate == "values") keys_ = v_;
  if (position_.cope_gate == "separate") {
    keys_ = context_.times(own("gate_keys"), xn_);
    if (turned) keys_ = rotated(keys_, false);
  }
  gate_queries_ = turned ? &turned_q_ : &q_;
}

/// For each whole block: mean of W_b xn, or gates, over its tokens in the document of its last token.
template <class Real> void OracleAttention<Real>::prepare_blocks() {
  const bool by_keys = position_.block_gate == "keys";
  const Rows x = context_.times(own(by_keys ? "block_keys" : "block_gate"), xn_);
  for (std::int64_t end = position_.block_size; end <= context_.tokens(); end += position_.block_size) {
    Row mean;
    for (std::size_t c = 0; c < x[0].size(); ++c) {
      Row members;
      for (std::int64_t j = end - position_.block_size; j < end; ++j)
        if (sequence_.document[j] == sequence_.document[end - 1]) members.push_back(x[j][c]);
      mean.push_back(tape_.sum(members, 1 / Real(members.size())));
      if (!by_keys) mean.back() = tape_.sigmoid(tape_.add(mean.back(), own("block_gate_bias")[c]));
    }
    block_means_.push_back(mean);
  }
}

template <class Real> void OracleAttention<Real>::run() {
  const std::int64_t tokens = context_.tokens(), heads = model_.heads, groups = model_.kv_heads;
  mean_values.assign(tokens, Row());
  mean_states.assign(position_.has("tape") ? tokens : 0, Row());
  std::int64_t first = 0;
  for (std::int64_t i = 0; i < tokens; ++i) {
    if (sequence_.document[i] != sequence_.document[first]) first = i;
    if (position_.has("fire")) make_fire_features({i, 0, 0, first});
    for (std::int64_t h = 0; h < heads; ++h) attend({i, h, h / (heads / groups), first});
  }
  mean_values = context_.stored(std::move(mean_values));
  for (Row& row : mean_states) {  // [H D] so far
    Row mean(groups * depth_);
    for (std::int64_t at = 0; at < groups * depth_; ++at) {
      Row members;
      for (std::int64_t h = 0; h < heads; ++h)
        if (h / (heads / groups) == at / depth_) members.push_back(row[h * depth_ + at % depth_]);
      mean[at] = tape_.sum(members, 1 / Real(members.size()));
    }
    row = mean;
  }
}

template <class Real> void OracleAttention<Real>::attend(const At& at) {
  Row logit;
  logit.reserve(at.i - at.first + 1);
  for (std::int64_t j = at.first; j <= at.i; ++j)
    logit.push_back(tape_.dot(part(turned_q_, at.i, at.h), part(turned_k_, j, at.g), scale_));
  for (const auto add_bias : biases_) (this->*add_bias)(at, logit);

  const Id lse = tape_.log_sum_exp(logit);
  Row weights, column(logit.size());
  weights.reserve(logit.size());
  for (Id each : logit) weights.push_back(tape_.exp_difference(each, lse));
  const auto mean = [&](const Rows& x, std::int64_t c) {  // Σ_j A_ij x_j[c]
    for (std::int64_t j = at.first; j <= at.i; ++j) column[j - at.first] = x[j][c];
    return tape_.dot(weights, column);
  };
  for (std::int64_t c = at.g * depth_; c < (at.g + 1) * depth_; ++c) {
    mean_values[at.i].push_back(mean(v_, c));
    if (!mean_states.empty()) mean_states[at.i].push_back(mean(z_, c));
  }
}

template <class Real> void OracleAttention<Real>::add_relative(const At& at, Row& logit) {
  const Ids table = position_.relative_shared ? context_.parameter("model.position.relative") : own("relative");
  for (std::int64_t j = at.first; j <= at.i; ++j) {
    const std::int64_t n = std::min(distance(at.i, j), position_.relative_distance);
    add(logit, at, j, tape_.dot(part(q_, at.i, at.h), table.subspan(n * depth_, depth_)));
  }
}

template <class Real> void OracleAttention<Real>::add_alibi(const At& at, Row& logit) {
  for (std::int64_t j = at.first; j <= at.i; ++j)
    logit[j - at.first] = tape_.linear(logit[j - at.first], 1, -Real(slopes_[at.h]) * Real(distance(at.i, j)));
}

template <class Real> void OracleAttention<Real>::add_t5(const At& at, Row& logit) {
  const Ids buckets = context_.parameter("model.position.buckets");
  for (std::int64_t j = at.first; j <= at.i; ++j) {
    const std::int64_t n = oracle_t5_bucket(distance(at.i, j), position_.t5_buckets, position_.t5_max_distance);
    add(logit, at, j, buckets[n * model_.heads + at.h]);
  }
}

/// relu(in_r x_ij + b_r) of row i, the same for all heads.
template <class Real> void OracleAttention<Real>::make_fire_features(const At& at) {
  const Id c = own("fire_scale")[0], l = own("fire_scale")[1];
  const Ids in = own("fire_in"), bias = own("fire_in_bias");
  const Id range = tape_.log_range(c, l, Real(sequence_.position[at.i]), Real(1e-6L));
  fire_features_.clear();
  for (std::int64_t j = at.first; j <= at.i; ++j) {
    const Id x = tape_.quotient(tape_.log_distance(c, Real(distance(at.i, j))), range);
    Row& features = fire_features_.emplace_back();
    for (std::size_t r = 0; r < in.size(); ++r)
      features.push_back(tape_.relu(tape_.add(tape_.product(in[r], x), bias[r])));
  }
}

template <class Real> void OracleAttention<Real>::add_fire(const At& at, Row& logit) {
  const Ids out = own("fire_out").subspan(at.h * position_.fire_width, position_.fire_width);
  const Id bias = own("fire_out_bias")[at.h];
  for (std::int64_t j = at.first; j <= at.i; ++j)
    add(logit, at, j, tape_.add(tape_.dot(out, fire_features_[j - at.first]), bias));
}

template <class Real> void OracleAttention<Real>::add_forget(const At& at, Row& logit) {
  Id sum = tape_.leaf(0);
  for (std::int64_t j = at.i; j >= at.first; --j) {
    add(logit, at, j, sum);
    sum = tape_.add(sum, forget_[j][at.h]);
  }
}

template <class Real> auto OracleAttention<Real>::cope_gate(Id logit) -> Id {
  const Real e = Real(position_.cope_gate_floor);
  return tape_.linear(tape_.sigmoid(logit), 1 - e, e);
}

/// Z_i[n]
template <class Real> auto OracleAttention<Real>::cope_entry(const At& at, std::int64_t n) -> Id {
  if (position_.cope_table == "alibi") return tape_.leaf(-Real(slopes_[at.h]) * Real(n));
  const Ids table = position_.cope_table_shared ? context_.parameter("model.position.table") : own("table");
  return tape_.dot(part(q_, at.i, at.h), table.subspan(n * depth_, depth_),
                   position_.cope_table_scaled ? scale_ : Real(1));
}

constexpr auto not_made = std::numeric_limits<OracleTape<double>::Id>::max();

/// Z(p), from entries that are made when they are first needed.
template <class Real>
template <class Entry>
auto OracleAttention<Real>::between(Row& made, Id p, const Entry& entry) -> Id {
  const auto get = [&](Real n) {
    Id& slot = made.at(std::size_t(n));
    return slot = slot == not_made ? entry(std::int64_t(n)) : slot;
  };
  const Id below = get(std::floor(tape_.value(p))), above = get(std::ceil(tape_.value(p)));
  return tape_.mix(p, below, above);
}

template <class Real> void OracleAttention<Real>::add_cope(const At& at, Row& logit) {
  const Real last = Real(position_.cope_positions - 1);
  Row made(position_.cope_positions, not_made);
  Id sum = tape_.leaf(0);
  for (std::int64_t j = at.i; j >= at.first; --j) {
    if (!blocks_ || block(j) > block(at.i) - position_.block_window) {
      const Id u = tape_.dot(part(*gate_queries_, at.i, at.h), part(keys_, j, at.g), scale_);
      sum = tape_.add(sum, cope_gate(u));
    }
    add(logit, at, j, between(made, tape_.capped(sum, last), [&](std::int64_t n) { return cope_entry(at, n); }));
  }
}

/// Γ of block b, which is whole.
template <class Real> auto OracleAttention<Real>::block_gate(const At& at, std::int64_t b) -> Id {
  if (position_.block_gate == "tokens") return block_means_[b][at.h];
  return cope_gate(tape_.dot(part(q_, at.i, at.h), part(block_means_, b, at.g), scale_));
}

template <class Real> void OracleAttention<Real>::add_blocks(const At& at, Row& logit) {
  const Real last = Real(position_.block_positions - 1), lambda = position_.cope_table_scaled ? scale_ : Real(1);
  const Ids table = own("block_table");
  const auto entry = [&](std::int64_t n) {
    return tape_.dot(part(q_, at.i, at.h), table.subspan(n * depth_, depth_), lambda);
  };
  Row made(position_.block_positions, not_made);
  Id sum = tape_.leaf(0);
  std::int64_t below = block(at.i) - position_.block_window + 1;  // Σ so far is over blocks below..b(i)-w
  for (std::int64_t j = at.i; j >= at.first; --j) {
    if (block(j) < below) {
      below = block(j);
      const std::int64_t end =
          (below + 1) * position_.block_size - 1;  // the row must see it, else nobody knows the block
      if (end <= at.i && sequence_.document[end] == sequence_.document[at.i])
        sum = tape_.add(sum, block_gate(at, below));
    }
    add(logit, at, j, between(made, tape_.capped(sum, last), entry));
  }
}

template class OracleAttention<float>;
template class OracleAttention<double>;
template class OracleAttention<long double>;

}  // namespace capstan::tests
