#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "bimetal/balance/cost_model.h"
#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/release.h"
#include "bimetal/comm/fabric.h"
#include "bimetal/data/sampler.h"
#include "bimetal/device/device.h"
#include "bimetal/net/mesh.h"
#include "bimetal/parallel/server/client/client.h"
#include "bimetal/parallel/server/client/remote_gradients.h"
#include "bimetal/predict/evaluate.h"
#include "bimetal/train/choose_precision.h"
#include "bimetal/train/libtorch_state.h"
#include "bimetal/train/measure/step_probe.h"
#include "bimetal/train/rank_journal.h"
#include "bimetal/train/server/server_job.h"
#include "bimetal/train/server/server_setup.h"
#include "bimetal/train/setup.h"
#include "bimetal/train/share/compute.h"

namespace bimetal::train {
namespace {

namespace ps = parallel::server;
using std::chrono::milliseconds;

constexpr milliseconds kLookForWork{200};

/// One worker's run. Its members are made in the order of their declaration.
class WorkerProcess {
 public:
  WorkerProcess(const job::JobConfig& job, const WorkerRun& run, progress::Observer& observer);
  bool work();

 private:
  std::shared_ptr<const task::Task> load_task(progress::Observer& observer) const;
  ComputeOptions compute_options();
  balance::CostModel measure_cost() const;
  ps::PushCompression push_compression() const;
  ps::ClientOptions client_options() const;
  ps::Done train(const ps::Lease& lease);
  double compute(const task::Values& batch, const task::Draws& draws);
  ps::Done evaluate(const ps::Lease& lease);
  data::EpochSampler::Step samples_of(const ps::Lease& lease);

  const job::JobConfig& job_;
  const WorkerRun& run_;
  const ps::FoundServers found_;
  device::Place place_;
  std::shared_ptr<const task::Task> task_;
  precision::Precision precision_;
  bool channels_last_;
  balance::CostModel cost_;
  task::Model model_;
  ps::Client client_;
  ps::RemoteGradients gradients_;
  data::EpochSampler sampler_;
  Compute compute_;
};

WorkerProcess::WorkerProcess(const job::JobConfig& job, const WorkerRun& run,
                             progress::Observer& observer)
    : job_(job),
      run_(run),
      found_(run_.directory->find_all(server_processes(job_.servers),
                                      static_cast<int>(job_.servers.weights.size()))),
      place_(choose_place(job_, run_.trainer)),
      task_(load_task(observer)),
      precision_(choose_precision(job_, run_.trainer.worker, place_, *task_)),
      channels_last_(choose_channels_last(job_, place_, *task_, precision_, observer)),
      cost_(measure_cost()),
      model_(make_seeded_model(*task_, job_.train.seed, place_)),
      client_(client_options(), plan_of_model(job_, model_), model_.parameters(),
              Deadline::after(milliseconds_of(job_.cluster.join_timeout_s))),
      gradients_(client_, model_.parameters()),
      sampler_(task_->training()->size(), job_.train.seed),
      compute_(*task_, model_, place_.device, compute_options()) {
  observer.on_phase("training");
  model_.train();
}

ComputeOptions WorkerProcess::compute_options() {
  return {.micro_batch = job_.train.micro_batch,
          .before_use = [this](std::size_t unit) { gradients_.wait_for(model_.units[unit]); },
          .precision = precision_,
          .channels_last = channels_last_,
          .recompute = job_.train.recompute};
}

std::shared_ptr<const task::Task> WorkerProcess::load_task(progress::Observer& observer) const {
  auto alone = comm::make_group(net::make_solo_mesh(run_.trainer.host_name), {});
  const DataSender sender{run_.directory, run_.credentials};
  auto task =
      task::make_task(job_, find_job_data(std::move(alone), job_, run_.trainer, sender, observer));
  for (const auto& notice : task->notices()) observer.on_notice(notice);
  return task;
}

/// So that already the first leases fit this device.
balance::CostModel WorkerProcess::measure_cost() const {
  return probe_step(
      job_.train, *task_,
      {.on = {place_.device, place_.dtype, precision_, run_.trainer.worker.speed, channels_last_}});
}

ps::PushCompression WorkerProcess::push_compression() const {
  // Momentum stays with the servers' optimizer.
  const auto how = gradient_compression(job_, 1);
  return {how.compression.scheme, how.compression.density, how.warmup_steps, how.compression.rank};
}

ps::ClientOptions WorkerProcess::client_options() const {
  ps::ClientOptions options;
  options.servers = found_.servers;
  options.gone = found_.gone;
  options.shards = static_cast<int>(job_.servers.weights.size());
  options.token = run_.credentials.token;
  options.encryption = run_.credentials.encryption;
  options.job_id = run_.credentials.job_id;
  options.join.number = run_.number;
  options.join.host = run_.trainer.host_name;
  options.join.device = job::with_device(run_.trainer.worker, place_.device.str());
  options.join.release = std::string(release());
  if (cost_.known() && cost_.beta() > 0) {
    options.join.samples_per_s = 1 / cost_.beta();
    options.join.step_seconds = cost_.alpha();
  }
  options.join.facts = common_facts(job_, *task_, model_);
  options.timeout = milliseconds_of(job_.parallel.timeout_s);
  options.peer_timeout = peer_timeout_of(job_);
  options.compression = push_compression();
  options.give_up = [stop = run_.trainer.stop_requested, directory = run_.directory] {
    return (stop && stop()) || directory->known_to_have_ended();
  };
  options.lost = [this](int server) { return run_.directory->withdrawn(server); };
  options.pull_compression = comm::scheme_of(job_.compression.parameters);
  const auto transport =
      comm::transport_for(comm::transport_of(job_.fabric.transport, "fabric.transport"));
  if (transport == comm::Transport::tcp) options.ring_bytes = 0;
  return options;
}

data::EpochSampler::Step WorkerProcess::samples_of(const ps::Lease& lease) {
  sampler_.seek({.epoch = lease.epoch, .offset = lease.offset});
  const std::array counts{lease.count};
  auto step = sampler_.next(counts);
  if (step.epoch != lease.epoch || step.total != lease.count) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("server 0 has leased samples {} … {} of epoch {}, which do not exist",
                            lease.offset, lease.offset + lease.count, lease.epoch));
  }
  return step;
}

/// The sum of the samples' losses.
double WorkerProcess::compute(const task::Values& batch, const task::Draws& draws) {
  const auto backward = [this](const torch::Tensor& loss_sum, bool last) {
    backward_into(gradients_)(loss_sum, last);
    if (last) gradients_.finish();
  };
  for (;;) {
    const auto outcome = compute_.try_run(
        task::samples_of(batch), [&batch] { return batch; }, backward, draws);
    if (outcome.fit == progress::Fit::fits) return outcome.loss_sum;
    const bool again = outcome.fit != progress::Fit::too_large;
    if (!gradients_.start_over() || !again) std::rethrow_exception(outcome.error);
  }
}

ps::Done WorkerProcess::train(const ps::Lease& lease) {
  client_.set_step((lease.epoch * task_->training()->size() + lease.offset) /
                   job_.train.global_batch);
  gradients_.begin(lease);
  const Stopwatch preparing;
  const auto samples = samples_of(lease);
  const auto draws = task::Draws::of(job_.train.seed, samples.epoch, samples.indices);
  const auto batch = [&] {
    const task::DrawScope scope(draws);
    return task::to_device(task_->training()->batch(samples.indices), place_.device);
  }();
  const double prepared = preparing.seconds();
  ps::Done done;
  const Stopwatch watch;  // of computing, and of what forward waits for parameters
  done.loss_sum = compute(batch, draws);
  const double waited = gradients_.pull_seconds();
  device::pause_for_speed(run_.trainer.worker.speed, watch.seconds() - waited + prepared);
  done.compute_seconds = watch.seconds() - waited + prepared;
  done.version = gradients_.version();
  done.communicate_seconds = done.wait_seconds = waited;
  return done;
}

ps::Done WorkerProcess::evaluate(const ps::Lease& lease) {
  client_.start_pull(lease, ps::Client::Values::exact);
  ps::Done done;
  done.version = client_.finish_pull();
  const auto data = task_->evaluation();
  if (!data || lease.offset + lease.count > predict::test_chunks(*data)) {
    throw Error(ErrorCode::CorruptData, "server 0 has leased test samples that do not exist");
  }
  const auto sums =
      predict::evaluate_chunks(*task_, model_, lease.offset, lease.count,
                               {.device = place_.device, .speed = run_.trainer.worker.speed});
  done.metrics = sums.metrics;
  done.loss_sum = sums.loss;
  done.weight = sums.weight;
  return done;
}

bool WorkerProcess::work() {
  double waited = 0;
  for (Stopwatch idle;;) {
    if (run_.trainer.stop_requested && run_.trainer.stop_requested()) {
      client_.leave();
      return false;
    }
    if (auto* log = run_.trainer.log; log != nullptr && log->due()) client_.say(log->take());
    const auto lease = client_.next(Deadline::after(kLookForWork));
    if (client_.finished()) return true;
    if (!lease) continue;
    waited = idle.seconds();
    auto done = lease->work == ps::Work::train ? train(*lease) : evaluate(*lease);
    if (lease->work == ps::Work::train) done.wait_seconds += waited;
    client_.done(lease->id, done);
    idle = Stopwatch();
  }
}

}  // namespace

bool run_worker(const job::JobConfig& job, const WorkerRun& run, progress::Observer& observer) {
  try {
    require_deterministic(job, 1);
    auto own = job;
    if (weighs_servers(job.servers)) {
      set_weights(own.servers,
                  ps::weigh_as_worker(weighing_of(job, run.directory, run.credentials)));
    }
    return WorkerProcess(own, run, observer).work();
  } catch (const Error& error) {
    // A job that is resumed at its end is over before its workers have joined.
    const auto code = error.code();
    const bool missed =
        code == ErrorCode::Aborted || code == ErrorCode::PeerLost || code == ErrorCode::Timeout;
    if (missed && run.directory->known_to_have_ended()) return true;
    throw;
  } catch (const std::exception& error) {
    throw error_of(error, fmt::format("worker {}", run.number),
                   run.number >= 0 ? std::optional(run.number) : std::nullopt);
  }
}

}  // namespace bimetal::train
