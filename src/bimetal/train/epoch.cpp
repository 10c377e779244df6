// The parts of an epoch, in the order of its start, and the state that it hands over.

#include "bimetal/train/epoch.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <array>
#include <exception>
#include <span>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/c10d/island.h"
#include "bimetal/checkpoint/checkpoint_folder.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/predict/predict.h"
#include "bimetal/train/setup.h"

namespace bimetal::train {
namespace {

/// Others are training beside its first steps, and its next ones will tell more.
constexpr std::chrono::milliseconds kBudgetOfNewcomer{150};
constexpr const char* kMeasuring = "devices were being measured";

}  // namespace

Epoch::Epoch(Run& run, comm::Group group)
    : run_(run),
      job_(run.job),
      options_(run.options),
      observer_(run.observer),
      group_(std::move(group)),
      mesh_(make_mesh(group_, job_.mesh)),
      replicas_(group_, mesh_),
      memory_(group_, job_, options_, run_.place, *run_.task, run_.elements),
      precisions_(group_, job_, options_.worker, run_.place, *run_.task, observer_, run_.precision),
      channels_last_(find_memory_format()),
      stages_(plan_stages(job_, mesh_, *run_.task, computing(), run_.batch_weight(), memory_,
                          observer_)),
      lanes_(stages_.mesh ? Lanes(stages_.mesh->shape(), group_.rank())
                          : Lanes(replicas_.group().size(), replicas_.group().rank())),
      balancer_(measure_devices()),
      trained_(job_, group_, run_.task, run_.place, run_.learnt, observer_, parallel_options(),
               weigh_shards(), mesh_, stages_.mesh ? stages_.cuts : ChosenCuts{{0}, weigh_parts()},
               precisions_.half_of_all()),
      offload_(job_, trained_, observer_),
      computed_(*run_.task, trained_.tensor_ranks()),
      stage_(make_stage_compute(job_, computed_, stages_, trained_, computing())),
      step_(computed_, trained_.model(), trained_.optimizer(), trained_.sync(), step_options()),
      feed_(run_.task->training(), run_.sampler_here(), lanes_.mine(), job_.train.global_batch,
            job_.train.epochs, run_.place.device),
      shadow_(job_.train, *run_.task, probe_options()),
      profiler_(group_, profile_request(), run_.place.device,
                fmt::format("{}{}, {}", stages_.mesh ? stages_.name_of(group_.rank()) + ", " : "",
                            options_.host_name, run_.place.device.str()),
                run_.timeout()),
      apart_(job_, group_) {
  require_one_precision(mesh_.get(), precisions_.mine(), Deadline::after(run_.timeout()));
  run_.precision = precisions_.mine();
  run_.begin();
  if (group_.rank() == 0) run_.lead();
  take_error_feedback();
  auto& scaler = step_.stages().scaler();
  if (scaler && state().loss_scaler) scaler->restore(*state().loss_scaler);
  begin();
  observer_.on_leading(group_.rank() == 0);
}

/// Keeps the facts learnt about this rank's device. Gradients may lie in memory of the group.
Epoch::~Epoch() {
  trained_.wait_for_copies();
  run_.saving.end_group();
  if (measures_alone()) {
    run_.cost = balancer_.devices()[static_cast<std::size_t>(lanes_.mine())].cost;
  }
  trained_.optimizer().zero_grad();
}

void Epoch::abort(const std::string& reason) {
  group_.abort(reason);
  if (!mesh_) return;
  for (auto group : {mesh_->pipeline(), mesh_->replicas(), mesh_->tensor()}) {
    if (group) group.abort(reason);
  }
}

void Epoch::begin() {
  introduce_workers();
  observer_.on_phase("training");
  run_.since_save = Stopwatch();
  trained_.model().train();
  idle_.tell(lanes_.by_rank(balancer_.shares()), job_.train.global_batch, observer_);
  apart_.begin(state().step);
  feed_.draw(balancer_.shares());
  offload_.start();
  journal_->start_clock();
}

/// As all ranks have them: a replica's is that of its first rank, and -1, as of one that is new,
/// where another one has it, which was of the same replica before.
std::vector<int> Epoch::numbers_of_replicas() const {
  const std::array<int, 1> mine = {run_.number};
  std::vector<int> of_ranks(static_cast<std::size_t>(group_.size()));
  auto group = group_;
  group
      .all_gather(comm::buffer(std::span(mine)), comm::buffer(std::span(of_ranks)),
                  Deadline::after(run_.timeout()))
      .wait();
  std::vector<int> numbers;
  for (int replica = 0; replica < replicas_.group().size(); ++replica) {
    const auto first = static_cast<std::size_t>(replicas_.ranks_of(replica).front());
    const bool taken = std::ranges::find(numbers, of_ranks[first]) != numbers.end();
    numbers.push_back(taken ? -1 : of_ranks[first]);
  }
  return numbers;
}

void Epoch::introduce_workers() {
  const auto places = replicas_.places(
      {options_.host_name, job::with_device(options_.worker, run_.place.device.str())},
      run_.timeout());
  for (const auto& place : places) hosts_.push_back(place.host);
  auto numbers = numbers_of_replicas();
  auto& members = run_.journal->members;
  for (auto& member : members) member.place.gone = true;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    if (numbers[rank] < 0) {
      numbers[rank] = static_cast<int>(members.size());
      members.emplace_back();
    }
    auto& place = members[static_cast<std::size_t>(numbers[rank])].place;
    place = places[rank];
    if (stages_.mesh) place.stage = stages_.name_of(static_cast<int>(rank));
  }
  run_.number = numbers[static_cast<std::size_t>(replicas_.group().rank())];
  numbers_ = numbers;
  journal_.emplace(balancer_, lanes_, job_.parallel.balance, *run_.journal, numbers);
  std::vector<progress::WorkerPlace> all;
  for (const auto& member : members) all.push_back(member.place);
  observer_.on_workers(all);
}

void Epoch::hand_over() {
  read_late();
  share_buffers();
  auto feedback = step_.store().error_feedback();
  if (!run_.whole() && !job_.checkpoint.dir.empty()) {
    save(Write::now);
    run_.learnt.saved = checkpoint::checkpoint_path(job_.checkpoint.dir, state().step);
  }
  state().error_feedback = std::move(feedback);
}

void Epoch::take_error_feedback() {
  auto feedback = std::exchange(state().error_feedback, {});
  if (step_.store().set_error_feedback(std::move(feedback), state().step)) return;
  observer_.on_notice(
      "the checkpoint's error feedback is of other buckets or of a compressed job: it is dropped");
}

/// As it was in the epochs before, whose last digits it has a part in.
bool Epoch::find_memory_format() {
  if (run_.channels_last) return *run_.channels_last;
  if (job_.train.memory_format == "auto") observer_.on_phase("measuring memory formats");
  run_.channels_last =
      choose_channels_last(job_, run_.place, *run_.task, precisions_.mine(), observer_);
  return *run_.channels_last;
}

ProbeOptions Epoch::probe_options() const {
  ProbeOptions options{.on = computing(), .update = job_.zero.level == 0, .known = run_.cost};
  if (!options_.doors.empty()) options.budget = kBudgetOfNewcomer;
  if (run_.learnt.optimizer && !run_.learnt.begun) options.model = &run_.learnt.model;
  return options;
}

/// The weights that the plan was made with; speeds are known by now.
std::vector<double> Epoch::weigh_shards() {
  if (job_.zero.shards == "memory" && job_.zero.weights.empty() && !memory_.shards().empty()) {
    return memory_.shards();
  }
  if (!products_.empty()) return products_;
  if (!mesh_) return shard_weights(job_, group_, run_.place.device, alone_);
  return shard_weights(job_, mesh_->replicas(), run_.place.device, replicas_.of_this_part(alone_));
}

/// Without stages; speeds are known by now.
parallel::PartWeights Epoch::weigh_parts() const {
  return part_weights(job_.mesh, mesh_ ? mesh_->shape() : parallel::MeshShape{}, alone_);
}

Computing Epoch::computing() const {
  return {run_.place.device, run_.place.dtype, precisions_.mine(), options_.worker.speed,
          channels_last_};
}

/// A rehearsal has a model of its own: where whole gradients are too much, the first steps tell.
balance::Balancer Epoch::measure_devices() {
  // No memory plan here for a cut model: choosing the cuts has planned stages, and `bimetal plan`
  // shows the memory of tensors in parts.
  const bool cut = stages_.mesh || replicas_.in_parts();
  const bool steps = !in_pieces() && !stages_.mesh;
  if (!steps && job_.zero.level > 0 && job_.zero.shards == "speed" && job_.zero.weights.empty()) {
    observer_.on_phase("measuring devices");
    const auto& among = mesh_ ? mesh_->replicas() : group_;
    comm::do_watched(among, run_.timeout(), kMeasuring, [&] {
      products_ = probe_products(among, run_.place.device, options_.worker.speed);
    });
  }
  if (!cut) memory_.plan(computing(), run_.batch_weight(), products_, observer_);
  std::vector<balance::Device> devices(
      static_cast<std::size_t>(replicas_.in_parts() ? group_.size() : lanes_.count()));
  if (steps) {
    observer_.on_phase("measuring devices");
    comm::do_watched(group_, run_.timeout(), kMeasuring, [&] {
      devices = probe_devices(group_, job_.train, *run_.task, probe_options());
    });
  }
  memory_.note_peak();
  for (const auto& device : devices) alone_.push_back(device.cost.rate(run_.batch_weight()));
  // Shares do not decide what replicas of uneven stages get of a step: see Dealer.
  const bool dealt = stages_.mesh && !stages_.mesh->shape().even();
  return balance::Balancer({.policy = dealt ? balance::Policy::Equal : job_.parallel.balance,
                            .fixed_weights = job_.parallel.weights,
                            .global_batch = run_.batch_weight()},
                           replicas_.devices(devices));
}

/// The ranks of a replica compute the same micro-batches, on whatever kinds of devices.
std::int64_t Epoch::limit_of_parts() const {
  const MicroBatch own(job_.train.micro_batch, run_.place.device,
                       task::typical_weight(*run_.task->training()));
  return least_limit(replicas_.world(), own, Deadline::after(run_.timeout()));
}

StepOptions Epoch::step_options() {
  StepOptions options;
  options.device = run_.place.device;
  if (!stage_) options.speed = options_.worker.speed;
  options.micro_batch = replicas_.in_parts() ? limit_of_parts() : job_.train.micro_batch;
  options.seed = job_.train.seed;
  options.precision = precisions_.mine();
  options.channels_last = channels_last_;
  options.update.limits = optim::limits_of(job_.train);
  options.update.scaler = precisions_.scaler();
  options.recompute = job_.train.recompute;
  options.graphs = job_.train.graphs;
  options.parallel.timeout = run_.timeout();
  options.stage = stage_;
  options.before_update = [this] { trained_.wait_for_copies(); };
  return options;
}

parallel::ReplicatedModelOptions Epoch::parallel_options() const {
  return {.bucket_bytes = static_cast<std::size_t>(job_.parallel.bucket_mb * (1 << 20)),
          .timeout = run_.timeout(),
          .compression = gradient_compression(job_, replicas_.group().size()),
          .form_island = form_island(),
          .equal = run_.whole() && run_.learnt.begun};
}

/// A compressed exchange needs each rank's own gradients.
c10d::FormIsland Epoch::form_island() const {
  if (job_.compression.gradients != "none" || job_.fabric.islands == "off") return {};
  // The vendor library's own limit comes behind the one by which its calls are given up.
  return c10d::islands_of(run_.place.device, 2 * run_.timeout());
}

/// By this rank's weights, while the others wait for its next step.
void Epoch::show_sample(std::uint64_t draw) {
  if (stage_ || replicas_.in_parts() || job_.zero.level >= 3) {
    observer_.on_notice(
        "asked to try a sample, but this rank has not the whole model: save, and use `bimetal "
        "predict` or `bimetal generate` with the checkpoint");
    return;
  }
  try {
    const auto& task = *run_.task;
    const auto judged = task.validation() ? task.validation() : task.evaluation();
    const auto data = judged ? judged : task.training_unchanged();
    observer_.on_sample(predict::look_at_sample(task, task.description(), *data, trained_.model(),
                                                run_.place.device, draw));
  } catch (
      const std::exception& error) {  // of a task that wants more than a sample: no reason to end
    observer_.on_notice(fmt::format("the sample could not be tried: {}", error.what()));
  }
  journal_->start_clock();
}

/// New lines of the ranks' logs. A few kilobytes of each, so that no step waits long for them.
void Epoch::tell_lines() {
  if (options_.log == nullptr) return;
  const auto lines = progress::gather_lines(group_, *options_.log, run_.timeout());
  const bool by_replica = numbers_.size() == lines.size();
  for (std::size_t rank = 0; rank < lines.size(); ++rank) {
    if (lines[rank].empty()) continue;
    observer_.on_rank_lines(by_replica ? numbers_[rank] : static_cast<int>(rank),
                            by_replica && rank < hosts_.size() ? hosts_[rank] : "", lines[rank]);
  }
}

}  // namespace bimetal::train
