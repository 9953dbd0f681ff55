// NCCL's sends and receives between threads of one process, over the emulated device's streams (docs/simt.md).
//
// A group is two operations of its stream. The first says that the group is under way, and copies between it and those groups
// under way that hold the other sides. The second waits until all other sides are under way. So a group blocks its stream until
// its peers have come, as NCCL's kernel does, and no message is ahead of its receiver. Of a pair of ranks the n-th send meets the
// n-th receive, whatever they are for.

#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/simt/device.h"
#include "tests/support/simt/nccl.h"

namespace {

struct Call {
  bool is_send;
  ncclComm_t comm;
  int peer;
  std::byte* data;
  std::size_t count;
  ncclDataType_t type;
  cudaStream_t stream;
};

struct Group;

/// A send and a receive that met.
struct Transfer {
  std::shared_ptr<Group> sender, receiver;
  std::byte *from = nullptr, *to = nullptr;
  std::size_t bytes = 0;
  bool done = false;
};

struct Group {
  bool under_way = false, aborted = false;
  simt::Mark begin, end;
  std::vector<std::shared_ptr<Transfer>> transfers;
  std::shared_ptr<simt::Meeting> meeting = std::make_shared<simt::Meeting>();
};

/// Sends, or receives, from one rank to another that wait for their other side.
struct Waiting {
  Call call;
  std::shared_ptr<Group> group;
};

/// The ranks of one unique id.
struct World {
  int size = 0, joined = 0;
  std::map<int, ncclComm*> members;                            // that are not gone yet
  std::string refused;                                         // why it will never start
  std::map<std::pair<int, int>, std::deque<Waiting>> waiting;  // by from and to
  std::map<std::pair<int, int>, std::int64_t> met;             // messages so far
};

std::size_t size_of(ncclDataType_t type) { return type == ncclFloat32 ? 4 : 1; }

}  // namespace

struct ncclComm {
  enum class State : std::uint8_t { starting, ready, launching, finalizing, failed };
  std::shared_ptr<World> world;
  int rank = 0, device = 0;
  State state = State::starting;
  ncclResult_t failure = ncclSuccess;
  std::vector<Call> launching;  // a group that is queued when its rank asks how far it is
  std::vector<std::shared_ptr<Group>> groups;
  std::int64_t group_count = 0;
};

namespace {

/// Everything below is guarded by the device's lock.
struct Nccl {
  std::int64_t ids = 0;
  std::map<std::string, std::shared_ptr<World>> worlds;
  std::vector<std::unique_ptr<ncclComm>> comms;
  std::map<int, std::string> failing;  // ranks
  std::string last_error;
};
Nccl& nccl() {
  static Nccl* const all = new Nccl;
  return *all;
}

thread_local int group_depth = 0;
thread_local std::vector<Call> group_calls;

ncclResult_t refuse(ncclResult_t result, const std::string& why) {
  nccl().last_error = why;
  return result;
}

/// A fault that NCCL itself would show as a hang, or as wrong numbers: the device stays broken, for all ranks.
ncclResult_t break_down(const std::string& why) {
  if (simt::device().broken == cudaSuccess) simt::device().break_down(cudaErrorLaunchFailure, "NCCL: " + why);
  return refuse(ncclInvalidUsage, why);
}

bool exists(ncclComm_t comm) {
  return std::any_of(nccl().comms.begin(), nccl().comms.end(), [&](const auto& each) { return each.get() == comm; });
}

std::string name_of(const ncclComm& comm) {
  return "rank " + std::to_string(comm.rank) + " of " + std::to_string(comm.world->size);
}

/// What a communicator must be for any call but a question after its state.
ncclResult_t check_ready(ncclComm_t comm, const char* call) {
  if (!exists(comm)) return break_down(std::string(call) + " with a communicator that is none");
  if (comm->state == ncclComm::State::ready) return ncclSuccess;
  return break_down(std::string(call) + " of " + name_of(*comm) + " before its last call was done (ncclInProgress)");
}

std::string text_of(const Call& call) {
  return (call.is_send ? "to " : "from ") + std::to_string(call.peer) + ": " + std::to_string(call.count) +
         " of type " + std::to_string(call.type);
}

cudaError_t run_transfers(Group& group) {
  for (const auto& transfer : group.transfers) {
    if (transfer->done || !transfer->sender->under_way || !transfer->receiver->under_way) continue;
    if (transfer->sender->aborted || transfer->receiver->aborted) continue;
    transfer->done = true;
    if (const cudaError_t status = simt::copy_on_device(transfer->to, transfer->from, transfer->bytes);
        status != cudaSuccess)
      return status;
  }
  return cudaSuccess;
}

ncclResult_t join(std::int64_t number, std::pair<int, int> way, const Call& one, const std::shared_ptr<Group>& group,
                  const Waiting& other) {
  const Call &send = one.is_send ? one : other.call, &receive = one.is_send ? other.call : one;
  if (send.count != receive.count || send.type != receive.type)
    return break_down("message " + std::to_string(number) + " from rank " + std::to_string(way.first) + " to rank " +
                      std::to_string(way.second) + " is sent as " + std::to_string(send.count) + " of type " +
                      std::to_string(send.type) + " and received as " + std::to_string(receive.count) + " of type " +
                      std::to_string(receive.type));
  const auto transfer = std::make_shared<Transfer>();
  transfer->sender = one.is_send ? group : other.group;
  transfer->receiver = one.is_send ? other.group : group;
  transfer->from = send.data;
  transfer->to = receive.data;
  transfer->bytes = send.count * size_of(send.type);
  group->transfers.push_back(transfer);
  if (other.group != group) other.group->transfers.push_back(transfer);
  group->meeting->after.push_back(other.group->begin);
  other.group->meeting->after.push_back(group->begin);
  --other.group->meeting->missing;
  return ncclSuccess;
}

ncclResult_t meet(const Call& call, const std::shared_ptr<Group>& group) {
  World& world = *call.comm->world;
  const int me = call.comm->rank;
  const std::pair<int, int> way = call.is_send ? std::pair{me, call.peer} : std::pair{call.peer, me};
  std::deque<Waiting>& waiting = world.waiting[way];
  if (waiting.empty() || waiting.front().call.is_send == call.is_send) {
    waiting.push_back({call, group});
    ++group->meeting->missing;
    return ncclSuccess;
  }
  const Waiting other = waiting.front();
  waiting.pop_front();
  return join(world.met[way]++, way, call, group, other);
}

/// Queues the group that ncclGroupEnd took.
ncclResult_t launch(ncclComm& comm) {
  const std::vector<Call> calls = std::move(comm.launching);
  comm.launching.clear();
  const cudaStream_t stream = calls.front().stream;
  const auto found = simt::device().streams.find(stream);
  if (!found || found->device != comm.device)
    return break_down("a group of " + name_of(comm) + " on a stream of another GPU, or none");
  const auto group = std::make_shared<Group>();
  std::string& text = group->meeting->text;
  text = "group " + std::to_string(comm.group_count++) + " of " + name_of(comm) + " (";
  for (const Call& call : calls) text += (&call == calls.data() ? "" : ", ") + text_of(call);
  text += ")";
  const auto begin = [group] {
    group->under_way = true;
    return run_transfers(*group);
  };
  if (simt::device().queue(stream, begin) != cudaSuccess) return refuse(ncclUnhandledCudaError, "a broken device");
  group->begin = simt::device().streams.mark(found);
  for (const Call& call : calls)
    if (const ncclResult_t result = meet(call, group); result != ncclSuccess) return result;
  const auto end = [group] {
    group->transfers.clear();  // which know the group in turn
    return cudaSuccess;
  };
  if (simt::device().queue(stream, end, {}, group->meeting) != cudaSuccess)
    return refuse(ncclUnhandledCudaError, "a broken device");
  group->end = simt::device().streams.mark(found);
  std::erase_if(comm.groups, [](const auto& each) { return simt::Streams::reached(each->end); });
  comm.groups.push_back(group);
  return ncclSuccess;
}

bool all_done(const ncclComm& comm) {
  return std::all_of(comm.groups.begin(), comm.groups.end(),
                     [](const auto& group) { return simt::Streams::reached(group->end); });
}

/// Done once all ranks of the id have come. NCCL refuses two of them on one GPU, and tells all.
ncclResult_t start(ncclComm& comm) {
  World& world = *comm.world;
  for (const auto& [rank, other] : world.members)
    if (other != &comm && other->device == comm.device)
      world.refused = "Duplicate GPU detected : rank " + std::to_string(comm.rank) + " and rank " +
                      std::to_string(rank) + " both on CUDA device " + std::to_string(comm.device);
  if (!world.refused.empty()) return refuse(ncclInvalidUsage, world.refused);
  return world.joined < world.size ? ncclInProgress : ncclSuccess;
}

ncclResult_t finalize(const ncclComm& comm) {
  for (const auto& group : comm.groups)
    if (simt::device().streams.run_towards(group->end) != cudaSuccess)
      return refuse(ncclUnhandledCudaError, "a broken device");
  return all_done(comm) ? ncclSuccess : ncclInProgress;
}

/// Goes on with what is in progress.
ncclResult_t go_on(ncclComm& comm) {
  if (const auto failing = nccl().failing.find(comm.rank); failing != nccl().failing.end())
    return refuse(ncclRemoteError, failing->second);
  switch (comm.state) {
    case ncclComm::State::starting: return start(comm);
    case ncclComm::State::launching: return launch(comm);
    case ncclComm::State::finalizing: return finalize(comm);
    case ncclComm::State::ready: return ncclSuccess;
    case ncclComm::State::failed: return comm.failure;
  }
  return ncclInternalError;
}

ncclResult_t add_call(const Call& call) {
  const std::scoped_lock guard(simt::device().lock);
  const char* const name = call.is_send ? "ncclSend" : "ncclRecv";
  if (const ncclResult_t result = check_ready(call.comm, name); result != ncclSuccess) return result;
  if (group_depth == 0) return break_down(std::string(name) + " outside of a group");
  if (call.peer < 0 || call.peer >= call.comm->world->size)
    return break_down(std::string(name) + ": there is no rank " + std::to_string(call.peer));
  if (!group_calls.empty() && (group_calls[0].comm != call.comm || group_calls[0].stream != call.stream))
    return break_down("a group over two communicators or streams, which is not emulated");
  group_calls.push_back(call);
  return ncclSuccess;
}

void forget(ncclComm_t comm) {
  comm->world->members.erase(comm->rank);
  std::erase_if(nccl().comms, [&](const auto& each) { return each.get() == comm; });
}

}  // namespace

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::scoped_lock guard(simt::device().lock);
  *id = {};
  std::strcpy(id->internal, ("id " + std::to_string(++nccl().ids)).c_str());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  const std::scoped_lock guard(simt::device().lock);
  if (config->blocking != 0) return refuse(ncclInvalidUsage, "only communicators that do not block are emulated");
  std::shared_ptr<World>& world = nccl().worlds[id.internal];
  if (!world) {
    world = std::make_shared<World>();
    world->size = ranks;
  }
  if (std::strncmp(id.internal, "id ", 3) != 0 || ranks != world->size || rank < 0 || rank >= ranks)
    return refuse(ncclInvalidArgument, "rank " + std::to_string(rank) + " of " + std::to_string(ranks) + " with " +
                                           id.internal + ", which has " + std::to_string(world->size));
  if (world->members.contains(rank)) return refuse(ncclInvalidUsage, "rank " + std::to_string(rank) + " comes twice");
  nccl().comms.push_back(std::make_unique<ncclComm>());
  *comm = nccl().comms.back().get();
  (*comm)->world = world;
  (*comm)->rank = rank;
  (*comm)->device = simt::device_of_thread();
  world->members[rank] = *comm;
  ++world->joined;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const std::scoped_lock guard(simt::device().lock);
  if (!exists(comm)) return break_down("a question after a communicator that is none");
  *state = go_on(*comm);
  if (*state == ncclSuccess && comm->state != ncclComm::State::finalizing) comm->state = ncclComm::State::ready;
  if (*state != ncclSuccess && *state != ncclInProgress) {
    comm->state = ncclComm::State::failed;
    comm->failure = *state;
  }
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const std::scoped_lock guard(simt::device().lock);
  if (const ncclResult_t result = check_ready(comm, "ncclCommFinalize"); result != ncclSuccess) return result;
  comm->state = ncclComm::State::finalizing;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const std::scoped_lock guard(simt::device().lock);
  if (!exists(comm)) return break_down("ncclCommDestroy of a communicator that is none");
  if (!all_done(*comm) || !comm->launching.empty())
    return break_down("ncclCommDestroy of " + name_of(*comm) + " with work under way");
  forget(comm);
  return ncclSuccess;
}

/// What is queued ends without its other sides; what they do is theirs.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const std::scoped_lock guard(simt::device().lock);
  if (!exists(comm)) return break_down("ncclCommAbort of a communicator that is none");
  for (const auto& group : comm->groups) {
    group->aborted = true;
    group->meeting->after.clear();
    group->meeting->missing = 0;
    for (auto& [way, waiting] : comm->world->waiting)
      std::erase_if(waiting, [&](const Waiting& each) { return each.group == group; });
  }
  forget(comm);
  simt::device().lock.changed();
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* number) {
  const std::scoped_lock guard(simt::device().lock);
  if (!exists(comm)) return break_down("ncclCommCuDevice of a communicator that is none");
  *number = comm->device;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t) {
  const std::scoped_lock guard(simt::device().lock);
  thread_local std::string text;  // other threads may fail while the caller still reads
  text = nccl().last_error;
  return text.c_str();
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  const std::scoped_lock guard(simt::device().lock);
  if (group_depth == 0) return break_down("ncclGroupEnd without ncclGroupStart");
  if (--group_depth > 0 || group_calls.empty()) return ncclSuccess;
  const ncclComm_t comm = group_calls[0].comm;
  std::vector<Call> calls;
  calls.swap(group_calls);
  if (const ncclResult_t result = check_ready(comm, "ncclGroupEnd"); result != ncclSuccess) return result;
  comm->launching = std::move(calls);
  comm->state = ncclComm::State::launching;
  return ncclInProgress;
}

ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  std::byte* const bytes = static_cast<std::byte*>(const_cast<void*>(data));  // only read
  return add_call({true, comm, peer, bytes, count, type, stream});
}

ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return add_call({false, comm, peer, static_cast<std::byte*>(data), count, type, stream});
}

namespace simt {

void fail_nccl(int rank, const std::string& text) {
  const std::scoped_lock guard(device().lock);
  nccl().failing[rank] = text;
}

void forget_nccl_failures() {
  const std::scoped_lock guard(device().lock);
  nccl().failing.clear();
}

int nccl_communicators() {
  const std::scoped_lock guard(device().lock);
  return int(nccl().comms.size());
}

}  // namespace simt
