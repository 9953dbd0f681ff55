#include "framework/trainer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "framework/files.h"
#include "framework/plan.h"
#include "framework/random.h"
#include "framework/stop_request.h"
#include "kernels/build_info.h"
#include "kernels/elementwise.h"
#include "kernels/host_view.h"
#include "kernels/isa.h"
#include "kernels/memory.h"
#include "kernels/threads.h"
#include "parallel/agreement.h"

namespace capstan::framework {

namespace {

namespace fs = std::filesystem;

Keep keep_of(const std::string& recompute) {
  return recompute == "none" ? Keep::everything : recompute == "block" ? Keep::ring : Keep::inputs;
}

/// One run at a time in a folder: an advisory lock that the system drops when the process ends.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder) : file_(open((folder + "/lock").c_str(), O_CREAT | O_RDWR, 0644)) {
    if (file_ < 0) fail(ExitCode::io, "{}: cannot be written: {}; choose another --run", folder, std::strerror(errno));
    if (flock(file_, LOCK_EX | LOCK_NB) != 0) {
      close(file_);
      fail(ExitCode::config, "{}: another run is writing here: wait for it, or choose another --run", folder);
    }
  }
  ~FolderLock() { close(file_); }
  FolderLock(const FolderLock&) = delete;

 private:
  int file_;
};

/// Runs body. A GPU without enough memory is told with what the run was estimated to take.
template <class Body> auto with_estimate(const Recipe& recipe, int ranks, Body&& body) {
  try {
    return body();
  } catch (const kernels::OutOfDeviceMemory& error) {
    fail(ExitCode::internal,
         "{}; capstan plan estimates {} for a rank: use more ranks, a smaller train.micro_batch, or train.recompute = "
         "block_full",
         error.what(), bytes_text(make_plan(recipe, ranks).memory_total()));
  }
}

/// A choice or an error of rank 0 that all ranks take over.
template <class Body> void on_rank_0(parallel::Communicator& world, Body&& body) {
  std::string error;
  std::int64_t code = 0;
  if (world.rank() == 0) {
    try {
      body();
    } catch (const Error& e) {
      error = e.what();
      code = std::int64_t(e.code());
    }
  }
  code = world.all_reduce(code, parallel::Reduce::max);
  if (code != 0) throw Error(ExitCode(code), world.broadcast(error, 0));
}

}  // namespace

Recipe read_training_recipe(const std::string& path, const std::vector<std::pair<std::string, std::string>>& overrides,
                            const ModelShape* shape) {
  const auto read_over = [&](Recipe& recipe) {
    read_recipe(recipe, path);
    for (const Option& option : options(recipe))
      for (const auto& [name, value] : overrides)
        if (option.name == name) option.set(value, "command line");
  };
  Recipe recipe;
  read_over(recipe);
  if (shape || !recipe.model.from.empty()) {
    ModelShape start;
    if (shape) {
      start = *shape;
    } else {
      const Checkpoint checkpoint = Checkpoint::open(resolve_model_folder(recipe.model.from));
      start = {checkpoint.header().model, checkpoint.header().position};
    }
    Recipe on_top;
    on_top.model = start.model;
    on_top.position = start.position;
    read_over(on_top);
    recipe = on_top;
    if (!shape) check_shape_of_start(recipe, start.model, path);
  }
  if (recipe.model.max_length == 0) recipe.model.max_length = recipe.data.context;
  check_recipe(recipe, path);
  return recipe;
}

Trainer::Trainer(const Recipe& recipe, parallel::Communicator& world)
    : recipe_(recipe), place_(world, device_of_name(recipe.train.device)), world_(place_.world()),
      grid_(make_process_grid(world_, recipe.grid.ring ? int(recipe.grid.ring) : world.size())),
      data_(open_training_data(recipe_)) {
  const TrainConfig& train = recipe_.train;
  kernels::set_threads(parallel::threads_of_rank(world_, recipe_.grid.threads));
  resolve_sizes(recipe_.model, recipe_.position);
  require_same_start();

  model_ = std::make_unique<Model>(recipe_.model, recipe_.position);
  const auto is_trainable = [&](const std::string& name) {
    return matches_any(name, train.trainable) && !matches_any(name, train.frozen);
  };
  with_estimate(recipe_, world_.size(), [&] {
    model_->parameters().allocate(device_of_name(train.device), kernels::wide(type_of_precision(train.precision)), true,
                                  is_trainable, world_.size());
  });
  if (model_->parameters().trainable_elements() == 0)
    fail(ExitCode::config,
         "train.trainable = {} and train.frozen = {} leave nothing to train; capstan inspect lists parameter names",
         train.trainable, train.frozen);
  start_values();

  ring_ = std::make_unique<parallel::Ring>(
      model_->make_ring(*grid_.ring, recipe_.data.context, train.tile, recipe_.grid, train.shifted_groups > 0));
  optimizer_ = std::make_unique<Optimizer>(recipe_.optimizer, model_->parameters(), world_);
  narrow_if_asked();
}

void Trainer::narrow_if_asked() {
  if (type_of_precision(recipe_.train.precision) == DType::bf16) optimizer_->narrow_parameters();
}

/// Refuses ranks that are about to do different things; the first difference is named.
void Trainer::require_same_start() {
  parallel::Facts facts{{"binary", kernels::build_text()}};
  for (const Option& option : options(recipe_)) facts.emplace_back(option.name, option.text());
  for (const TokenFile& file : data_.train.files())
    facts.emplace_back("data file " + file.path(), file.info().checksum);
  if (data_.validation)
    facts.emplace_back("data file " + recipe_.data.validation, data_.validation->files()[0].info().checksum);
  if (!recipe_.model.from.empty()) {
    const std::string manifest = resolve_model_folder(recipe_.model.from) + "/manifest.json";
    facts.emplace_back("model " + recipe_.model.from, hex(xxh3_of_file(manifest)));
  }
  require_agreement(world_, facts);
}

/// From the start model, or drawn. The tokenizer comes along so that a checkpoint can generate.
void Trainer::start_values() {
  model_->parameters().initialise(std::uint64_t(recipe_.train.seed), recipe_.model.init_std);
  if (recipe_.model.from.empty()) {
    text_ = text_conventions(recipe_, data_, nullptr);
  } else {
    const Checkpoint start = Checkpoint::open(resolve_model_folder(recipe_.model.from));
    text_ = text_conventions(recipe_, data_, &start);
    new_parameters_ = load_values(model_->parameters(), start);
    extras_ = start.extras();
  }
  extras_.tokenizer_model = text_.tokenizer_model;
}

std::vector<std::vector<SampleId>> Trainer::micro_batches(const std::vector<SampleId>& all) const {
  std::vector<SampleId> mine;
  for (std::size_t i = std::size_t(grid_.data_rank); i < all.size(); i += std::size_t(grid_.data_size))
    mine.push_back(all[i]);
  std::vector<std::vector<SampleId>> out;
  const std::size_t size = std::size_t(recipe_.train.micro_batch);
  for (std::size_t i = 0; i < mine.size(); i += size)
    out.emplace_back(mine.begin() + i, mine.begin() + std::min(mine.size(), i + size));
  if (reversed_) std::reverse(out.begin(), out.end());
  return out;
}

/// What makes sequences differ in dropout and random positions: the step and the sample, for any ranks.
Dropout Trainer::dropout_of(const std::vector<SampleId>& ids) const {
  Dropout out{recipe_.train.dropout, recipe_.train.attention_dropout, {}};
  for (const SampleId& id : ids)
    out.draws.push_back(
        random_bits(std::uint64_t(recipe_.train.seed), stream_of("draw " + id.text()), std::uint64_t(step_)));
  return out;
}

StepResult Trainer::train_step() {
  StepResult result;
  std::vector<SampleId> samples;
  for (std::int64_t i = 0; i < recipe_.train.sequences; ++i) {
    samples.push_back(data_.train.sample(step_ * recipe_.train.sequences + i));
    result.counted += data_.train.counted(samples.back());
    result.samples.push_back(samples.back().text());
  }
  if (result.counted == 0)
    fail(ExitCode::bad_data, "step {}: none of its tokens has a target: every document has one token", step_ + 1);

  double nll = 0;
  std::vector<LayerStats> layers(std::size_t(model_->layers()));
  for (const std::vector<SampleId>& ids : micro_batches(samples)) {
    Batch batch;
    {
      const kernels::MemoryPurpose purpose("batch");
      batch = data_.train.read(ids, ring_->layout, grid_.ring_rank, model_->device());
    }
    batch.declared_length = recipe_.position.length;
    batch.dropout = dropout_of(ids);
    batch.shifted_groups = recipe_.train.shifted_groups;
    Pass pass = model_->forward(*ring_, batch, recipe_.train.tile, keep_of(recipe_.train.recompute), &layers);
    for (const double of_token : kernels::host_values<double>(pass.nll)) nll += of_token;
    model_->backward(batch, pass);
  }
  // All ranks learn of a loss that is not finite before any of them updates.
  const std::int64_t culprit =
      world_.all_reduce(std::isfinite(nll) ? std::int64_t(-1) : std::int64_t(world_.rank()), parallel::Reduce::max);
  if (culprit >= 0)
    fail(ExitCode::internal,
         "step {}: the loss on rank {} is not finite; nothing was updated and the last checkpoint is kept: lower "
         "optimizer.lr, or look at samples {}",
         step_ + 1, culprit, fmt::join(result.samples, " "));
  result.loss = world_.all_reduce(nll) / double(result.counted);
  result.layers = sum_over_ranks(world_, layers);
  result.learning_rate = recipe_.optimizer.lr * schedule_fraction(recipe_.schedule, step_, recipe_.train.steps);
  result.gradient_norm = optimizer_->step(result.learning_rate, result.counted);
  ++step_;
  return result;
}

/// Mean NLL over the first windows of the validation file; summed per window, then in window order, for any ranks.
double Trainer::validate() {
  if (!data_.validation) return -1;
  const Dataset& validation = *data_.validation;
  const std::int64_t windows = std::min(validation.windows(), recipe_.train.validate_sequences);
  Tensor sums({windows}, DType::f64, Device::ref);
  std::int64_t counted = 0;
  for (std::int64_t w = 0; w < windows; ++w) {
    counted += validation.counted(validation.window(w));
    if (w % grid_.data_size != grid_.data_rank) continue;
    Batch batch = validation.read({validation.window(w)}, ring_->layout, grid_.ring_rank, model_->device());
    batch.declared_length = recipe_.position.length;
    const Pass pass = model_->forward(*ring_, batch, recipe_.train.tile, Keep::nothing);
    for (const double of_token : kernels::host_values<double>(pass.nll)) sums.as<double>()[w] += of_token;
  }
  world_.all_reduce(sums);
  double total = 0;
  for (std::int64_t w = 0; w < windows; ++w) total += sums.as<double>()[w];
  return total / double(counted);
}

CheckpointHeader Trainer::header() const {
  CheckpointHeader out;
  out.step = step_;
  out.optimizer_steps = optimizer_->updates();
  out.model = recipe_.model;
  out.model.max_length = std::max(recipe_.model.max_length, recipe_.data.context);
  out.position = recipe_.position;
  out.recipe = write_recipe(recipe_);
  out.tokenizer = text_.tokenizer;
  out.end_tokens = text_.end_tokens;
  out.bos = text_.bos;
  return out;
}

/// An update can overflow after a loss that was still finite. Such weights must not replace the last good checkpoint.
/// Every rank holds all values, so that all come to the same verdict.
void Trainer::require_finite_values() const {
  for (const Parameter& p : model_->parameters().all())
    if (p.trainable && !kernels::all_finite(p.value))
      fail(ExitCode::internal,
           "step {}: the update made tensor '{}' not finite; it was not saved and the last checkpoint is kept: lower "
           "optimizer.lr",
           step_, p.name);
}

std::string Trainer::save(const std::string& parent) {
  require_finite_values();
  const ShardRange shard = optimizer_->shard();
  return save_checkpoint(world_, parent, "", header(), extras_, model_->parameters(),
                         {shard.begin, shard.end, optimizer_->m(), optimizer_->v(), optimizer_->values()});
}

void Trainer::load(const Checkpoint& checkpoint) {
  model_->parameters().widen();
  load_values(model_->parameters(), checkpoint);
  narrow_if_asked();
  step_ = checkpoint.header().step;
  optimizer_->set_updates(checkpoint.header().optimizer_steps);
  if (!optimizer_->m() || !checkpoint.has_optimizer()) return;
  const ShardRange shard = optimizer_->shard();
  for (const Parameter& p : model_->parameters().all()) {
    const std::int64_t begin = std::max(p.offset, shard.begin),
                       end = std::min(p.offset + p.shape.elements(), shard.end);
    if (!p.trainable || begin >= end) continue;
    checkpoint.read("m", p.name, begin - p.offset, end - p.offset,
                    optimizer_->m().rows(begin - shard.begin, end - shard.begin));
    checkpoint.read("v", p.name, begin - p.offset, end - p.offset,
                    optimizer_->v().rows(begin - shard.begin, end - shard.begin));
  }
}

void refuse_changed_recipe(const Recipe& recipe, const std::string& run_folder) {
  Recipe before, now = recipe;
  read_recipe(before, run_folder + "/config.cfg");
  const std::vector<Option> old_options = options(before), new_options = options(now);
  for (std::size_t i = 0; i < old_options.size(); ++i)
    if (!new_options[i].may_change && old_options[i].text() != new_options[i].text())
      fail(ExitCode::config,
           "{} was started with {} = {}, this command says {}: a rerun may change only steps, intervals, limits and "
           "the rank grid; use another --run",
           run_folder, old_options[i].name, old_options[i].text(), new_options[i].text());
}

void Trainer::announce(const std::string& run_folder, const std::string& resumed) const {
  const auto& parameters = model_->parameters();
  const std::vector<std::string> hosts = parallel::hosts_of_ranks(world_);
  if (world_.rank() != 0) return;
  if (!resumed.empty()) fmt::print("resumed   {} (step {})\n", resumed, step_);
  fmt::print("run       {}\n", run_folder);
  fmt::print("model     {} parameters, {} trained; {} layers, width {}, {} heads, {} kv heads, position {}",
             parameters.elements(), parameters.trainable_elements(), recipe_.model.layers, recipe_.model.hidden_size,
             recipe_.model.heads, recipe_.model.kv_heads, recipe_.position.kind);
  fmt::print("{}\n", recipe_.position.scaling == "none"
                         ? ""
                         : fmt::format(", {} scaling x{}", recipe_.position.scaling, recipe_.position.factor));
  if (!new_parameters_.empty())
    fmt::print("new       {} parameters that the start model lacks begin at their initial values\n",
               new_parameters_.size());
  fmt::print("data      {} tokens in {} file(s), documents {}; step = {} x {} tokens\n", data_.train.tokens(),
             data_.train.files().size(), recipe_.data.documents, recipe_.train.sequences, recipe_.data.context);
  fmt::print("ranks     {} ({}): data {} x ring {}; {}\n", world_.size(), world_.backend(), grid_.data_size,
             grid_.ring_size, parallel::text_of_hosts(hosts));
  fmt::print("schedule  {}{}\n", ring_->schedule.name,
             recipe_.grid.schedule != "auto" ? ""
             : grid_.ring_size == 1          ? " (grid.schedule = auto: one rank)"
                                             : " (grid.schedule = auto: even work, and every encoding's key order)");
  fmt::print("kernels   {} {}{}\n", recipe_.train.device, recipe_.train.precision,
             recipe_.train.device == "cpu"
                 ? fmt::format(", {}, {} thread{} per rank", kernels::name_of(kernels::best_isa()), kernels::threads(),
                               kernels::threads() > 1 ? "s" : "")
                 : std::string());
  fmt::print("{}", place_.table());
  std::fflush(stdout);
}

ExitCode Trainer::run(const std::string& run_folder, const RunContext& context) {
  const std::string checkpoints = run_folder + "/checkpoints";
  std::unique_ptr<FolderLock> lock;
  on_rank_0(world_, [&] {
    std::error_code error;
    fs::create_directories(checkpoints, error);
    if (error) fail(ExitCode::io, "{}: cannot be made: {}; choose another --run", checkpoints, error.message());
    lock = std::make_unique<FolderLock>(run_folder);
    const std::int64_t needed = checkpoint_bytes(model_->parameters(), bool(optimizer_->m())),
                       available = free_bytes(run_folder);
    if (available < needed)
      fail(ExitCode::io, "{}: a checkpoint takes {} bytes, {} are free: make room, or choose another --run", run_folder,
           needed, available);
  });
  const std::string found = world_.broadcast(world_.rank() == 0 ? newest_checkpoint(run_folder) : std::string(), 0);
  if (!found.empty()) {
    on_rank_0(world_, [&] { refuse_changed_recipe(recipe_, run_folder); });
    load(Checkpoint::open(found));
  }
  on_rank_0(world_, [&] { write_text_atomically(run_folder + "/config.cfg", write_recipe(recipe_)); });
  if (!context.quiet) announce(run_folder, found);

  std::unique_ptr<MetricsLog> log;
  on_rank_0(world_, [&] { log = std::make_unique<MetricsLog>(run_folder, step_, recipe_.train.steps, context.quiet); });
  const auto say = [&](const std::string& line) {
    if (log) log->say(line);
  };
  StopRequest stop(run_folder, recipe_.train.max_time);
  std::int64_t saved_step = found.empty() ? -1 : step_;
  const auto save_now = [&] {
    if (saved_step == step_) return;
    say("saved " + save(checkpoints));
    saved_step = step_;
    on_rank_0(world_, [&] { prune_checkpoints(checkpoints, recipe_.checkpoint.keep, step_); });
  };
  const auto every = [&](std::int64_t interval) { return interval > 0 && step_ % interval == 0; };

  while (step_ < recipe_.train.steps) {
    const double begin = monotonic_seconds();
    const StepResult result = with_estimate(recipe_, world_.size(), [&] { return train_step(); });
    const bool last = step_ == recipe_.train.steps;
    StepMetrics metrics{step_,
                        result.loss,
                        result.gradient_norm,
                        result.learning_rate,
                        result.counted,
                        recipe_.train.sequences * recipe_.data.context,
                        monotonic_seconds() - begin,
                        world_.all_reduce(peak_memory(model_->device()), parallel::Reduce::max),
                        result.samples,
                        result.layers,
                        -1};
    if (last || every(recipe_.train.validate_every)) metrics.validation_loss = validate();
    if (log) log->write(metrics);
    if (last || every(recipe_.checkpoint.every)) save_now();
    std::string reason = last ? "" : stop.reason(world_);
    if (!last && reason.empty() && context.stop) reason = context.stop->reason(world_);
    if (!reason.empty()) {
      save_now();
      say(fmt::format("stopped after step {}: {}; rerun the same command to go on", step_, reason));
      return ExitCode::stopped;
    }
  }
  say(fmt::format("done: {} steps; {}", step_, run_folder));
  return ExitCode::done;
}

}  // namespace capstan::framework
