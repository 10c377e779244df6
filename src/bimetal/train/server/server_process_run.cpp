#include <fmt/format.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <memory>
#include <optional>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/net/mesh.h"
#include "bimetal/optim/optimizers.h"
#include "bimetal/progress/together.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/train/server/server_process.h"
#include "bimetal/train/server/server_setup.h"

namespace bimetal::train {

ServerProcess::ServerProcess(const job::JobConfig& job, const ServerRun& run,
                             progress::Observer& observer)
    : job_(job),
      run_(run),
      observer_(observer),
      alone_(comm::make_group(net::make_solo_mesh(run.trainer.host_name), {})),
      place_{torch::kCPU, device::dtype_named(job.train.dtype)},
      files_(find_data()),
      data_server_(run.server == 0 ? send_data() : nullptr),
      task_(task::make_task(job_, files_)),
      model_(make_seeded_model(*task_, job_.train.seed, place_)),
      optimizer_(make_optimizer()),
      state_(start()),
      plan_(plan_of_model(job_, model_)),
      facts_(common_facts(job_, *task_, model_)),
      store_(
          plan_, run_.server % shards(), model_.parameters(),
          [&job](std::vector<torch::Tensor> pieces) {
            return optim::make_optimizer(job.train, std::move(pieces));
          },
          static_cast<std::uint64_t>(state_.step), optim::limits_of(job_.train)),
      server_(server_options(), store_),
      journal_({.epochs = job_.train.epochs,
                .steps = checkpoint::planned_steps(job_.train, task_->training()->size(), state_),
                .global_batch = job_.train.global_batch,
                .counts = task_->counts()}),
      loss_trend_(state_.step == 0),
      start_step_(state_.step),
      saved_step_(state_.step),
      first_sequence_(checkpoint::last_save(job_.checkpoint.dir).sequence),
      version_(store_.version()) {
  const auto& described = task_->description();
  if (const auto other = checkpoint::other_normalisation(state_.model, described)) {
    starting().on_notice(*other);
  }
  state_.model = described;
  if (run_.server > 0) watching_data().on_phase("keeping parameters");
  restore_shard(store_, *optimizer_, model_);
  run_.directory->publish(run_.server, server_.endpoint());
}

std::unique_ptr<torch::optim::Optimizer> ServerProcess::make_optimizer() const {
  if (!task_->has_optimizer()) return optim::make_optimizer(job_.train, model_.parameters());
  throw Error(ErrorCode::Unsupported,
              "parallel.mode = \"server\" does not go with an optimizer of the task's own: servers "
              "step parts of tensors; take parallel.mode = \"all_reduce\", or train.optimizer");
}

data::DatasetFiles ServerProcess::find_data() {
  torch::set_num_threads(1);  // the workers of this machine need the others
  if (run_.server > 0) {
    const DataSender sender{run_.directory, run_.credentials};
    return find_job_data(alone_, job_, run_.trainer, sender, watching_data());
  }
  try {
    return find_job_data(alone_, job_, run_.trainer, {}, observer_);
  } catch (const progress::Interrupted&) {
    throw;
  } catch (const Error& error) {
    run_.directory->publish_data(std::nullopt);
    throw Error(
        error.code(),
        fmt::format("{}; parameter server 0 needs a copy, and sends it to the machines that "
                    "have none",
                    error.what()),
        error.rank());
  }
}

std::unique_ptr<data::DataServer> ServerProcess::send_data() {
  if (task::is_python_task(job_)) return nullptr;
  auto server = std::make_unique<data::DataServer>(net::Endpoint{run_.listen_host, 0},
                                                   run_.credentials, files_, run_.trainer.host_name,
                                                   milliseconds_of(job_.parallel.timeout_s));
  run_.directory->publish_data(server->endpoint());
  return server;
}

checkpoint::TrainingState ServerProcess::start() {
  return checkpoint::starting_point(alone_, job_, run_.trainer.resume, model_, *optimizer_,
                                    starting());
}

ps::ServerOptions ServerProcess::server_options() {
  ps::ServerOptions options;
  options.server = run_.server;
  options.servers = server_processes(job_.servers);
  options.shards = shards();
  options.start = {state_.step, state_.position.epoch, state_.position.offset, {}};
  options.listen = {run_.listen_host, 0};
  options.token = run_.credentials.token;
  options.encryption = run_.credentials.encryption;
  options.job_id = run_.credentials.job_id;
  options.host = run_.trainer.host_name;
  options.facts = facts_;
  options.state = [this] { return shard_state(store_); };
  options.timeout = milliseconds_of(job_.parallel.timeout_s);
  options.peer_timeout = peer_timeout_of(job_);
  options.lost = [this](int server) { return run_.directory->withdrawn(server); };
  options.log = run_.trainer.log;
  return options;
}

ps::CoordinatorOptions ServerProcess::coordinator_options() const {
  ps::CoordinatorOptions options;
  auto& ledger = options.ledger;
  ledger.consistency = ps::consistency_of(job_.servers.consistency);
  ledger.staleness = job_.servers.staleness;
  ledger.prefetch = ps::prefetch_of(job_.servers.prefetch);
  ledger.dataset_size = task_->training()->size();
  ledger.weight = weights_in_order(*task_->training(), job_.train.seed);
  ledger.global_batch = job_.train.global_batch;
  ledger.epochs = job_.train.epochs;
  ledger.last_step = job_.train.steps;
  const bool saves = !job_.checkpoint.dir.empty();
  ledger.pause_every = saves ? job_.checkpoint.every_steps : 0;
  ledger.pause_at_epochs = saves || job_.train.evaluate;
  ledger.start = {state_.step, state_.position.epoch, state_.position.offset, {}};
  for (int server = 1; server < server_processes(job_.servers); ++server) {
    options.servers.insert(server);
  }
  options.shards = shards();
  options.staleness_aware = job_.servers.staleness_aware;
  options.weight_prediction = job_.servers.weight_prediction;
  const auto steps = checkpoint::planned_steps(job_.train, task_->training()->size(), state_);
  options.learning_rate_factor = [train = job_.train, steps](std::int64_t step) {
    return optim::learning_rate_at(train, step, steps) / optim::full_rate(train);
  };
  options.max_not_finite = static_cast<int>(job_.servers.max_not_finite);
  options.version = store_.version();
  options.join_timeout = milliseconds_of(job_.cluster.join_timeout_s);
  options.lease_timeout = milliseconds_of(job_.parallel.timeout_s);
  return options;
}

progress::Report ServerProcess::follow() {
  std::optional<net::Endpoint> stand_in;
  if (job_.servers.replicas > 1) {
    stand_in = run_.server == shards() ? server_.endpoint() : run_.directory->find(shards());
  }
  const auto note = [this](const ps::Event& event) {
    const auto* step = std::get_if<ps::StepEvent>(&event);
    if (!step) return;
    if (!std::exchange(begun_, true)) journal_.start_clock();
    workers_ = step->workers;
    note_step(journal_, *step);
  };
  const bool leads = server_.follow(run_.directory->find(0), stand_in, note,
                                    Deadline::after(milliseconds_of(job_.cluster.join_timeout_s)));
  return leads ? lead() : progress::Report{};
}

/// Server 0 is dead; the job goes on here, where it was.
progress::Report ServerProcess::lead() {
  const auto [position, version] = server_.position();
  ++state_.term;
  state_.step = position.steps_done;
  require_newest_here();  // or the job may be done, and this process have slept
  run_.directory->withdraw(0);
  data_server_ = send_data();
  observer_.on_phase("training");
  observer_.on_notice(
      fmt::format("server 0 is lost; server {} leads the job from now on, and "
                  "there is no copy of what it keeps",
                  run_.server));
  auto options = coordinator_options();
  options.workers = workers_;
  // Server 0 may have died before the save or the evaluation that it had paused for.
  const auto every = job_.checkpoint.every_steps;
  options.ledger.pause_first = position.steps_done > start_step_ && position.visited.empty() &&
                               ((position.offset == 0 && options.ledger.pause_at_epochs) ||
                                (every > 0 && position.steps_done % every == 0));
  begun_ = true;
  journal_.start_clock();
  server_.lead(options);
  serve_predictions();
  return follow_events();
}

progress::Report ServerProcess::coordinate() {
  observer_.on_phase("waiting for workers");
  const auto planned = checkpoint::planned_steps(job_.train, task_->training()->size(), state_);
  if (const auto text = checkpoint::early_end(job_.train, planned)) observer_.on_notice(*text);
  server_.coordinate(coordinator_options());
  return follow_events();
}

progress::Report run_parameter_server(const job::JobConfig& job, const ServerRun& run,
                                      progress::Observer& observer) {
  auto own = job;
  if (weighs_servers(job.servers)) {
    set_weights(own.servers, ps::weigh_as_server(weighing_of(job, run.directory, run.credentials),
                                                 run.server, run.listen_host, observer));
  }
  ServerProcess server(own, run, observer);
  return run.server == 0 ? server.coordinate() : server.follow();
}

}  // namespace bimetal::train
