// The collectives, written once over `exchange`. Sums are always x0 + x1 + … in rank order, so the bits depend neither
// on the backend nor on the algorithm that the size selects.
//
// Traffic per rank for n bytes of result on W ranks: all_gather n·(W-1)/W; reduce (n = all) the same; all_reduce twice
// that (small: n·(W-1)); broadcast at most n·log2 W from one rank; scan n.

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/elementwise.h"
#include "parallel/communicator.h"
#include "parallel/failure.h"

namespace capstan::parallel {

namespace {

using kernels::Device;
using kernels::DType;
using kernels::Tensor;

constexpr std::int64_t small_bytes = 64 << 10;  // below this, one round of messages beats two
constexpr std::int64_t buffer_bytes = 8 << 20;  // receive buffers of a reduction, all peers together

/// NaN wins a maximum or minimum: one that hides it would hide a broken run. Quiet comparisons, since Debug builds
/// trap.
template <class T> bool replaces(T other, T into, Reduce how) {
  if constexpr (std::is_floating_point_v<T>)
    return std::isnan(other) || (how == Reduce::max ? std::isgreater(other, into) : std::isless(other, into));
  else return how == Reduce::max ? other > into : other < into;
}

template <class T> void combine_as(T* into, const T* other, std::int64_t count, Reduce how) {
  if (how == Reduce::sum) {
    for (std::int64_t i = 0; i < count; ++i) into[i] = T(into[i] + other[i]);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i)
    if (replaces(other[i], into[i], how)) into[i] = other[i];
}

/// into = into (op) other, element by element, `into` on the left.
void combine(const View& into, const View& other, Reduce how) {
  if (into.device() == Device::cuda) {
    CAPSTAN_CHECK(how == Reduce::sum && into.type() == DType::f32,
                  "a reduction of {} on cuda: only sums of f32 are taken there", name_of(into.type()));
    return kernels::add(into, other);
  }
  const std::int64_t count = into.elements();
  switch (into.type()) {
    case DType::f64: return combine_as(into.as<double>(), other.as<double>(), count, how);
    case DType::f32: return combine_as(into.as<float>(), other.as<float>(), count, how);
    case DType::i64: return combine_as(into.as<std::int64_t>(), other.as<std::int64_t>(), count, how);
    case DType::i32: return combine_as(into.as<std::int32_t>(), other.as<std::int32_t>(), count, how);
    case DType::u8: return combine_as(into.as<std::uint8_t>(), other.as<std::uint8_t>(), count, how);
    case DType::bf16: fail(ExitCode::internal, "a reduction of bf16 values: sums are taken in f32");
  }
}

View flat(const View& view) { return view.reshape({view.elements()}); }

/// Where W pieces of one array begin: piece p is [edges[p], edges[p + 1]).
using Edges = std::vector<std::int64_t>;

Edges even_pieces(std::int64_t elements, int ranks) {
  Edges edges;
  for (int rank = 0; rank <= ranks; ++rank)  // as even as can be, without overflow in elements · rank
    edges.push_back(elements / ranks * rank + std::min<std::int64_t>(rank, elements % ranks));
  return edges;
}

View piece(const View& all, const Edges& edges, int rank) {
  return all.rows(edges[std::size_t(rank)], edges[std::size_t(rank) + 1]);
}

/// Every rank's own piece of the flat `all` is in place; brings the others'.
void gather_pieces(Communicator& ranks, const View& all, const Edges& edges) {
  std::vector<Message> sends, receives;
  for (int step = 1; step < ranks.size(); ++step) {  // each rank starts with another peer, so that none is crowded
    const int to = (ranks.rank() + step) % ranks.size(), from = (ranks.rank() - step + ranks.size()) % ranks.size();
    sends.push_back({piece(all, edges, ranks.rank()), to, tags::all_gather});
    receives.push_back({piece(all, edges, from), from, tags::all_gather});
  }
  ranks.exchange(sends, receives)->wait();
}

/// One slab of reduce_pieces: [begin, end) of every piece, cut where a piece is shorter.
void reduce_slab(Communicator& ranks, const View& all, const Edges& edges, const View& mine, const View& buffer,
                 std::int64_t begin, std::int64_t end, Reduce how) {
  const auto cut = [&](const View& whole) {
    return whole.rows(std::min(begin, whole.dim(0)), std::min(end, whole.dim(0)));
  };
  const View result = cut(mine);
  const auto slot = [&](int rank) { return buffer.rows(rank * (end - begin), rank * (end - begin) + result.dim(0)); };
  std::vector<Message> sends, receives;
  for (int step = 1; step < ranks.size(); ++step) {
    const int to = (ranks.rank() + step) % ranks.size(), from = (ranks.rank() - step + ranks.size()) % ranks.size();
    sends.push_back({cut(piece(all, edges, to)), to, tags::reduce});
    receives.push_back({slot(from), from, tags::reduce});
  }
  slot(ranks.rank()).copy_from(cut(piece(all, edges, ranks.rank())));
  ranks.exchange(sends, receives)->wait();
  for (int rank = 1; rank < ranks.size(); ++rank) combine(slot(0), slot(rank), how);
  result.copy_from(slot(0));
}

/// mine = the reduction over ranks of piece `rank` of the flat `all`; mine may be that piece itself. Each rank receives
/// its piece from all others and adds in rank order, slab by slab, so that the buffers stay small.
void reduce_pieces(Communicator& ranks, const View& all, const Edges& edges, const View& mine, Reduce how) {
  std::int64_t longest = 0;
  for (int rank = 0; rank < ranks.size(); ++rank) longest = std::max(longest, piece(all, edges, rank).dim(0));
  const std::int64_t fitting = buffer_bytes / (kernels::size_of(all.type()) * ranks.size());
  const std::int64_t slab = std::clamp<std::int64_t>(fitting, 1, std::max<std::int64_t>(longest, 1));
  const Tensor buffer({slab * ranks.size()}, all.type(), all.device());
  for (std::int64_t begin = 0; begin < longest; begin += slab)
    reduce_slab(ranks, all, edges, mine, buffer, begin, std::min(begin + slab, longest), how);
}

template <class T> View view_of(T& value) { return View(&value, kernels::DTypeOf<T>::value, Device::cpu, {1}); }

View view_of(std::string& text) { return View(text.data(), DType::u8, Device::cpu, {std::int64_t(text.size())}); }

}  // namespace

void Communicator::check_messages(std::span<const Message> sends, std::span<const Message> receives) const {
  for (const auto& messages : {sends, receives}) {
    for (const Message& message : messages) {
      CAPSTAN_CHECK(bool(message.data), "a message without data ({})", text_of_tag(message.tag));
      CAPSTAN_CHECK(message.peer >= 0 && message.peer < size(), "rank {} of {} ({})", message.peer, size(),
                    text_of_tag(message.tag));
      CAPSTAN_CHECK(message.tag >= 0 && message.tag <= tags::last, "{}; tags end at {}", text_of_tag(message.tag),
                    tags::first - 1);
    }
  }
}

/// Dissemination: after step s a rank knows of the 2s ranks before it. Everybody waits for everybody.
void Communicator::barrier() {
  std::uint8_t nothing = 0;
  const View empty = view_of(nothing).rows(0, 0);
  for (std::int64_t step = 1; step < size(); step *= 2) {
    const Message send{empty, int((rank() + step) % size()), tags::barrier};
    const Message receive{empty, int((rank() - step + size()) % size()), tags::barrier};
    exchange({&send, 1}, {&receive, 1})->wait();
  }
}

/// Binomial tree, counted from the root: rank n receives from n without its lowest bit, then serves n + lower bits.
void Communicator::broadcast(const View& data, int root) {
  CAPSTAN_CHECK(root >= 0 && root < size(), "root {} of {} ranks", root, size());
  const int place = (rank() - root + size()) % size();
  const auto rank_at = [&](std::int64_t other) { return int((other + root) % size()); };
  std::int64_t bit = 1;
  while (bit < size() && !(place & bit)) bit *= 2;
  if (place != 0) {
    const Message receive{data, rank_at(place - bit), tags::broadcast};
    exchange({}, {&receive, 1})->wait();
  }
  std::vector<Message> sends;
  for (bit /= 2; bit > 0; bit /= 2)
    if (place + bit < size()) sends.push_back({data, rank_at(place + bit), tags::broadcast});
  exchange(sends, {})->wait();
}

void Communicator::all_gather(const View& mine, const View& all) {
  CAPSTAN_CHECK(mine.type() == all.type() && all.elements() == size() * mine.elements(),
                "all_gather of {} {} on {} ranks into {} {}", mine.elements(), name_of(mine.type()), size(),
                all.elements(), name_of(all.type()));
  const Edges edges = even_pieces(all.elements(), size());
  piece(flat(all), edges, rank()).copy_from(mine);
  gather_pieces(*this, flat(all), edges);
}

void Communicator::all_reduce(const View& data, Reduce how) {
  if (size() == 1) return;
  const View values = flat(data);
  if (values.bytes() > small_bytes) {
    const Edges edges = even_pieces(values.elements(), size());
    reduce_pieces(*this, values, edges, piece(values, edges, rank()), how);
    gather_pieces(*this, values, edges);
    return;
  }
  const Tensor gathered({size(), values.elements()}, values.type(), values.device());
  all_gather(values, gathered);
  values.copy_from(gathered.view()[0]);
  for (int other = 1; other < size(); ++other) combine(values, gathered.view()[other], how);
}

void Communicator::reduce_scatter(const View& all, const View& mine) {
  CAPSTAN_CHECK(mine.type() == all.type() && all.elements() == size() * mine.elements(),
                "reduce_scatter of {} {} on {} ranks into {} {}", all.elements(), name_of(all.type()), size(),
                mine.elements(), name_of(mine.type()));
  reduce_pieces(*this, flat(all), even_pieces(all.elements(), size()), flat(mine), Reduce::sum);
}

/// A chain: rank r waits for the sum of ranks 0 … r-1, adds its own on the right and passes it on.
void Communicator::exclusive_scan(const View& data) {
  const View values = flat(data);
  const Tensor before = kernels::zeros_like(values);
  if (rank() > 0) {
    const Message receive{before.view(), rank() - 1, tags::scan};
    exchange({}, {&receive, 1})->wait();
    combine(values, before, Reduce::sum);  // the same bits as before + values
  }
  if (rank() + 1 < size()) {
    const Message send{values, rank() + 1, tags::scan};
    exchange({&send, 1}, {})->wait();
  }
  values.copy_from(before);
}

std::int64_t Communicator::all_reduce(std::int64_t value, Reduce how) {
  all_reduce(view_of(value), how);
  return value;
}

double Communicator::all_reduce(double value, Reduce how) {
  all_reduce(view_of(value), how);
  return value;
}

std::string Communicator::broadcast(const std::string& text, int root) {
  std::int64_t length = std::int64_t(text.size());
  broadcast(view_of(length), root);
  std::string result = rank() == root ? text : std::string(std::size_t(length), '\0');
  broadcast(view_of(result), root);
  return result;
}

std::vector<std::string> Communicator::all_gather(const std::string& text) {
  std::int64_t length = std::int64_t(text.size());
  std::vector<std::int64_t> lengths(std::size_t(size()), 0);
  all_gather(view_of(length), View(lengths.data(), DType::i64, Device::cpu, {size()}));

  Edges edges{0};
  for (const std::int64_t each : lengths) edges.push_back(edges.back() + each);
  std::string joined(std::size_t(edges.back()), '\0');
  joined.replace(std::size_t(edges[std::size_t(rank())]), text.size(), text);
  gather_pieces(*this, view_of(joined), edges);

  std::vector<std::string> texts;
  for (std::size_t each = 0; each < lengths.size(); ++each)
    texts.push_back(joined.substr(std::size_t(edges[each]), std::size_t(lengths[each])));
  return texts;
}

}  // namespace capstan::parallel
