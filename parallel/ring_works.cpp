// Who works on what, when: one function per schedule. Rank r of N; in zigzag layouts its chunks are r and h = 2N - 1 - r.

#include <algorithm>

#include "kernels/check.h"
#include "parallel/ring_schedule.h"

namespace capstan::parallel {

namespace {

WorkTable empty_table(int ranks, int slots) {
  return WorkTable(std::size_t(ranks), std::vector<std::vector<Work>>(std::size_t(slots)));
}

/// Slot s: key chunk r - s. Half of the ranks' time is spent waiting; the simplest there is.
WorkTable contiguous_work(int ranks) {
  WorkTable table = empty_table(ranks, ranks);
  for (int r = 0; r < ranks; ++r)
    for (int s = 0; s <= r; ++s) table[r][s].push_back({r, r - s, 0});
  return table;
}

/// Row states visit the key chunks, which stay: slot s, rank p works for the rows of rank p + s.
WorkTable pass_q_work(int ranks) {
  WorkTable table = empty_table(ranks, ranks);
  for (int p = 0; p < ranks; ++p)
    for (int s = 0; p + s < ranks; ++s) table[p][s].push_back({p + s, p, 0});
  return table;
}

/// Slot s: the two key chunks of rank r - s (mod N), which go round the ring. Two chunk pairs per slot, for all.
WorkTable zigzag_work(int ranks) {
  WorkTable table = empty_table(ranks, ranks);
  for (int r = 0; r < ranks; ++r) {
    const int h = 2 * ranks - 1 - r;
    for (int s = 0; s < ranks; ++s) {
      const int low = (r - s + ranks) % ranks, high = 2 * ranks - 1 - low;
      std::vector<Work>& work = table[r][s];
      if (high <= h) work.push_back({h, high, 0});
      work.push_back({h, low, 0});
      if (low <= r) work.push_back({r, low, 0});
    }
  }
  return table;
}

/// Phase A: the high rows on h, h - 1, …, r + 1, one per slot. Phase B: slot 2N - 1 - 2x has the high rows on chunk x,
/// the next slot the low rows, x = r, …, 0. Near → far for both; every rank has one pair in every slot.
WorkTable ordered_pull_work(int ranks) {
  WorkTable table = empty_table(ranks, 2 * ranks + 1);
  for (int r = 0; r < ranks; ++r) {
    const int h = 2 * ranks - 1 - r;
    for (int chunk = h; chunk > r; --chunk) table[r][h - chunk].push_back({h, chunk, 0});
    for (int x = r; x >= 0; --x) {
      table[r][2 * ranks - 1 - 2 * x].push_back({h, x, 0});
      table[r][2 * ranks - 2 * x].push_back({r, x, 0});
    }
  }
  return table;
}

/// Slot a: every key chunk that the rank's rows see, of head group a.
WorkTable allgather_work(int ranks, int groups) {
  WorkTable table = empty_table(ranks, groups);
  for (int r = 0; r < ranks; ++r)
    for (int a = 0; a < groups; ++a)
      for (const int rows : {2 * ranks - 1 - r, r})
        for (int chunk = rows; chunk >= 0; --chunk) table[r][a].push_back({rows, chunk, a});
  return table;
}

/// Rank (r, u) does what rank r of a ring does, for head group u, on chunks cut in `heads` pieces. A ring of one has one
/// slot per piece of rows, so that pieces arrive while others are worked on.
WorkTable ulysses_work(int ranks, int heads) {
  const int ring = ranks / heads;
  if (ring == 1) {
    WorkTable table = empty_table(ranks, heads);
    for (int u = 0; u < heads; ++u)
      for (int rows = 0; rows < heads; ++rows)
        for (int chunk = rows; chunk >= 0; --chunk) table[u][rows].push_back({rows, chunk, u});
    return table;
  }
  const WorkTable inner = ordered_pull_work(ring);
  WorkTable table = empty_table(ranks, int(inner[0].size()));
  for (int r = 0; r < ring; ++r)
    for (std::size_t s = 0; s < inner[r].size(); ++s)
      for (const Work& w : inner[r][s])
        for (int u = 0; u < heads; ++u)
          for (int i = 0; i < heads; ++i)
            for (int j = w.query_chunk == w.key_chunk ? i : heads - 1; j >= 0; --j)
              table[r * heads + u][s].push_back({w.query_chunk * heads + i, w.key_chunk * heads + j, u});
  return table;
}

}  // namespace

std::vector<std::string> schedule_names() {
  return {"auto", "contiguous", "zigzag", "ordered_pull", "allgather", "ulysses", "pass_q"};
}

std::string resolve_schedule(const std::string& name, int ranks) {
  if (name != "auto") return name;
  return ranks == 1 ? "contiguous" : "ordered_pull";
}

bool keeps_key_order(const std::string& schedule) { return schedule != "zigzag"; }

std::string refuse_ring(const RingRequest& request) {
  if (request.schedule != "ulysses")
    return request.heads == 0 ? std::string()
                              : fmt::format("grid.heads = {} is for grid.schedule = ulysses, not {}; take it out",
                                            request.heads, request.schedule);
  const int heads = request.heads ? request.heads : request.ranks;
  if (request.ranks % heads != 0)
    return fmt::format("grid.heads = {} does not divide the {} ranks of a ring; choose a divisor", heads,
                       request.ranks);
  if (request.kv_heads % heads != 0)
    return fmt::format(
        "grid.schedule = ulysses splits the heads over {} ranks, but the model has {} kv heads; choose grid.heads that "
        "divides them, or grid.schedule = ordered_pull",
        heads, request.kv_heads);
  return {};
}

RingSchedule make_schedule(const std::string& name, const SequenceLayout& layout, int groups) {
  const int ranks = layout.ranks();
  WorkTable work;
  if (name == "contiguous") work = contiguous_work(ranks);
  else if (name == "zigzag") work = zigzag_work(ranks);
  else if (name == "ordered_pull") work = ordered_pull_work(ranks);
  else if (name == "allgather") work = allgather_work(ranks, groups);
  else if (name == "ulysses") work = ulysses_work(ranks, groups);
  else if (name == "pass_q") work = pass_q_work(ranks);
  else fail(ExitCode::config, "grid.schedule = {}: there are {}", name, fmt::join(schedule_names(), ", "));
  return RingSchedule{name, groups, route_forward(work, layout), route_backward(work, layout)};
}

RingPlan plan_ring(const RingRequest& request) {
  if (const std::string reason = refuse_ring(request); !reason.empty()) fail(ExitCode::config, "{}", reason);
  const std::string name = resolve_schedule(request.schedule, request.ranks);
  const int heads = request.heads ? request.heads : request.ranks, ring = request.ranks / heads;
  const auto contiguous = [&](int ranks) { return SequenceLayout::contiguous(request.length, ranks, request.unit); };
  const auto zigzag = [&](int ranks) { return SequenceLayout::zigzag(request.length, ranks, request.unit); };
  SequenceLayout layout;
  if (name == "contiguous" || name == "pass_q") layout = contiguous(request.ranks);
  else if (name == "ulysses") layout = SequenceLayout::in_pieces(ring == 1 ? contiguous(1) : zigzag(ring), heads);
  else layout = zigzag(request.ranks);
  const int groups = name == "ulysses" ? heads : name == "allgather" ? request.kv_heads : 1;
  RingSchedule schedule = make_schedule(name, layout, groups);
  return {std::move(layout), std::move(schedule)};
}

RingSchedule pass_q_schedule(const SequenceLayout& layout, int first_query) {
  const int chunks = int(layout.chunks().size());
  // Every row state takes one key chunk per slot; a rank that is asked twice in a slot serves one after the other.
  WorkTable work = empty_table(layout.ranks(), chunks);
  for (int query = first_query; query < chunks; ++query)
    for (int key = query; key >= 0; --key) work[layout.chunks()[key].owner][query - key].push_back({query, key, 0});
  return RingSchedule{"pass_q", 1, route_forward(work, layout), {}};
}

}  // namespace capstan::parallel
