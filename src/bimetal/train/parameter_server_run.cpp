#include <fmt/format.h>
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/net/solo_mesh.h"
#include "bimetal/parallel/server/parameter_server.h"
#include "bimetal/parallel/server/shard_store.h"
#include "bimetal/train/data_link.h"
#include "bimetal/train/evaluate.h"
#include "bimetal/train/job_predictions.h"
#include "bimetal/train/optimizers.h"
#include "bimetal/train/schedule.h"
#include "bimetal/train/served_data.h"
#include "bimetal/train/served_job.h"
#include "bimetal/train/served_journal.h"
#include "bimetal/train/served_setup.h"
#include "bimetal/train/setup.h"
#include "bimetal/train/shard_state.h"
#include "bimetal/train/shared_checkpoint.h"
#include "bimetal/train/starting_point.h"
#include "bimetal/train/together.h"

namespace bimetal::train {
namespace {

namespace ps = parallel::server;
using std::chrono::milliseconds;

constexpr milliseconds kLook{100};
/// For workers and servers to read that the job is done.
constexpr std::chrono::seconds kToSayGoodbye{5};

milliseconds as_milliseconds(double seconds) {
  return milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

/// One server's run. Its members are made in the order of their declaration.
class ServedRun {
 public:
  ServedRun(const Job& job, const ServerRun& run, Observer& observer);
  Report serve();
  Report coordinate();

 private:
  data::DatasetFiles find_data();
  std::unique_ptr<DataServer> send_data();
  TrainingState start();
  /// Who is told of the start: by server 0 alone.
  Observer& starting() { return run_.server == 0 ? observer_ : quiet_; }
  /// A copy of server 0 is on its machine, which tells of the data.
  Observer& watching_data() { return run_.server == shards() ? quiet_ : observer_; }
  void tell_notes() {
    if (!data_server_) return;
    for (const auto& note : data_server_->take_notes()) observer_.on_notice(note);
  }
  ps::ServerOptions server_options();
  ps::CoordinatorOptions coordinator_options() const;
  Report lead();
  Report follow_events();
  void tell_all_that_it_is_over();
  void serve_predictions();
  int shards() const { return static_cast<int>(job_.parallel.servers.size()); }

  bool handle(const ps::Event& event);
  bool on_pause(const ps::PauseEvent& pause);
  void save_now(const ps::PauseEvent& pause);
  void evaluate_now(std::int64_t epoch);
  bool stop_requested() const {
    return run_.trainer.stop_requested && run_.trainer.stop_requested();
  }

  const Job& job_;
  const ServerRun& run_;
  Observer& observer_;
  Observer quiet_;
  comm::Group alone_;  ///< this process by itself, for what all modes share
  Place place_;
  data::DatasetFiles files_;
  std::unique_ptr<DataServer> data_server_;  ///< of the process that leads
  data::TrainTest data_;
  std::shared_ptr<models::Classifier> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;  ///< of whole tensors: for checkpoints
  TrainingState state_;
  ps::ShardPlan plan_;
  std::vector<std::string> facts_;  ///< what every client must have alike
  ps::ShardStore store_;
  ps::ParameterServer server_;
  ServedJournal journal_;
  std::int64_t start_step_, saved_step_, evaluated_step_ = -1;
  std::uint64_t version_;
  std::vector<ps::WorkerFigures> workers_;  ///< as server 0 has last told its stand-in
  std::size_t workers_told_ = 0;
  bool begun_ = false, stopping_ = false, interrupted_ = false, predictions_failed_ = false;
  std::unique_ptr<JobPredictions> predictions_;  ///< uses all of the above
};

ServedRun::ServedRun(const Job& job, const ServerRun& run, Observer& observer)
    : job_(job),
      run_(run),
      observer_(observer),
      alone_(comm::make_group(net::make_solo_mesh(run.trainer.host_name), {})),
      place_{torch::kCPU, dtype_named(job.train.dtype)},
      files_(find_data()),
      data_server_(run.server == 0 ? send_data() : nullptr),
      data_(load_served_data(job_, files_)),
      model_(make_seeded_model(job_, data_.train, place_)),
      optimizer_(make_optimizer(job_.train, model_->parameters())),
      state_(start()),
      plan_(plan_of_model(job_, *model_)),
      facts_(served_facts(job_, data_, *model_)),
      store_(
          plan_, run_.server % shards(), model_->parameters(),
          [&job](std::vector<torch::Tensor> pieces) {
            return make_optimizer(job.train, std::move(pieces));
          },
          static_cast<std::uint64_t>(state_.step)),
      server_(server_options(), store_),
      journal_(job_, planned_steps(job_.train, data_.train.size(), state_)),
      start_step_(state_.step),
      saved_step_(state_.step),
      version_(store_.version()) {
  state_.model = describe_model(job_, data_.train);
  if (run_.server > 0) watching_data().on_phase("keeping parameters");
  restore_shard(store_, *optimizer_, *model_);
  run_.publish(server_.endpoint());
}

data::DatasetFiles ServedRun::find_data() {
  torch::set_num_threads(1);  // the workers of this machine need the others
  if (run_.server > 0) {
    const DataSender sender{run_.find_data, credentials_of(run_.network)};
    return find_served_data(alone_, job_, run_.trainer, sender, watching_data());
  }
  try {
    return find_served_data(alone_, job_, run_.trainer, {}, observer_);
  } catch (const Interrupted&) {
    throw;
  } catch (const Error& error) {
    if (run_.publish_data) run_.publish_data(std::nullopt);
    throw Error(
        error.code(),
        fmt::format("{}; parameter server 0 needs a copy, and sends it to the machines that "
                    "have none",
                    error.what()),
        error.rank());
  }
}

std::unique_ptr<DataServer> ServedRun::send_data() {
  if (!run_.publish_data) return nullptr;
  auto server = std::make_unique<DataServer>(
      net::Endpoint{run_.listen_host, 0}, credentials_of(run_.network), files_,
      run_.trainer.host_name, as_milliseconds(job_.parallel.timeout_s));
  run_.publish_data(server->endpoint());
  return server;
}

TrainingState ServedRun::start() {
  return starting_point(alone_, job_, run_.trainer.resume, *model_, *optimizer_, place_.device,
                        starting());
}

ps::ServerOptions ServedRun::server_options() {
  ps::ServerOptions options;
  options.server = run_.server;
  options.servers = server_processes(job_.parallel);
  options.shards = shards();
  options.start = {state_.step, state_.position.epoch, state_.position.offset, {}};
  options.listen = {run_.listen_host, 0};
  options.token = run_.network.token;
  options.encryption = run_.network.encryption;
  options.job_id = run_.network.job_id;
  options.host = run_.trainer.host_name;
  options.facts = facts_;
  options.state = [this] { return shard_state(store_); };
  options.timeout = as_milliseconds(job_.parallel.timeout_s);
  options.lost = run_.lost;
  return options;
}

ps::CoordinatorOptions ServedRun::coordinator_options() const {
  ps::CoordinatorOptions options;
  auto& ledger = options.ledger;
  ledger.consistency = ps::consistency_of(job_.parallel.consistency);
  ledger.staleness = job_.parallel.staleness;
  ledger.prefetch = ps::prefetch_of(job_.parallel.prefetch);
  ledger.dataset_size = data_.train.size();
  ledger.global_batch = job_.train.global_batch;
  ledger.epochs = job_.train.epochs;
  ledger.last_step = job_.train.steps;
  const bool saves = !job_.checkpoint.dir.empty();
  ledger.pause_every = saves ? job_.checkpoint.every_steps : 0;
  ledger.pause_at_epochs = saves || job_.train.evaluate;
  ledger.start = {state_.step, state_.position.epoch, state_.position.offset, {}};
  for (int server = 1; server < server_processes(job_.parallel); ++server) {
    options.servers.insert(server);
  }
  options.shards = shards();
  options.staleness_aware = job_.parallel.staleness_aware;
  options.weight_prediction = job_.parallel.weight_prediction;
  const auto steps = planned_steps(job_.train, data_.train.size(), state_);
  options.learning_rate_factor = [train = job_.train, steps](std::int64_t step) {
    return learning_rate_at(train, step, steps) / train.learning_rate;
  };
  options.max_not_finite = static_cast<int>(job_.parallel.max_not_finite);
  options.version = store_.version();
  options.join_timeout = as_milliseconds(job_.cluster.join_timeout_s);
  options.lease_timeout = as_milliseconds(job_.parallel.timeout_s);
  return options;
}

Report ServedRun::serve() {
  std::optional<net::Endpoint> stand_in;
  if (job_.parallel.replicas > 1) {
    stand_in = run_.server == shards() ? server_.endpoint() : run_.find(shards());
  }
  const auto note = [this](const ps::Event& event) {
    const auto* step = std::get_if<ps::StepEvent>(&event);
    if (!step) return;
    if (!std::exchange(begun_, true)) journal_.start_clock();
    workers_ = step->workers;
    journal_.add(*step);
  };
  const bool leads = server_.serve(run_.find(0), stand_in, note,
                                   Deadline::after(as_milliseconds(job_.cluster.join_timeout_s)));
  return leads ? lead() : Report{};
}

/// Server 0 is dead; the job goes on here, where it was.
Report ServedRun::lead() {
  run_.withdraw(0);
  data_server_ = send_data();
  observer_.on_phase("training");
  observer_.on_notice(
      fmt::format("server 0 is lost; server {} leads the job from now on, and "
                  "there is no copy of what it keeps",
                  run_.server));
  const auto [position, version] = server_.position();
  auto options = coordinator_options();
  options.workers = workers_;
  // Server 0 may have died before it saved or evaluated what it had paused for.
  const auto every = job_.checkpoint.every_steps;
  options.ledger.pause_first = position.steps_done > start_step_ && position.visited.empty() &&
                               ((position.offset == 0 && options.ledger.pause_at_epochs) ||
                                (every > 0 && position.steps_done % every == 0));
  begun_ = true;
  state_.step = position.steps_done;
  journal_.start_clock();
  server_.lead(options);
  serve_predictions();
  return follow_events();
}

Report ServedRun::coordinate() {
  observer_.on_phase("waiting for workers");
  server_.coordinate(coordinator_options());
  return follow_events();
}

Report ServedRun::follow_events() {
  try {
    for (bool going_on = true; going_on;) {
      tell_notes();
      if (!stopping_ && stop_requested()) {
        stopping_ = true;
        server_.request_pause();
      }
      if (const auto event = server_.next_event(Deadline::after(kLook))) going_on = handle(*event);
    }
  } catch (const Error& error) {
    server_.abort(error);
    throw;
  }
  predictions_.reset();
  if (!interrupted_) tell_all_that_it_is_over();
  const auto workers = server_.figures();
  const auto repeated = server_.samples_repeated();
  server_.finish(Deadline::after(kToSayGoodbye));
  auto report =
      journal_.report(workers, repeated, state_.step,
                      version_ - static_cast<std::uint64_t>(start_step_), server_.bytes_sent());
  report.interrupted = interrupted_;
  return report;
}

/// A job that is resumed at its end is over at once: servers that are still to come are waited for,
/// workers find it told.
void ServedRun::tell_all_that_it_is_over() {
  if (run_.over) run_.over();
  const auto deadline = Deadline::after(as_milliseconds(job_.cluster.join_timeout_s));
  while (!server_.complete() && !deadline.expired() && !stop_requested()) {
    server_.next_event(Deadline::after(kLook));
  }
}

/// False when the job is done.
bool ServedRun::handle(const ps::Event& event) {
  if (const auto* joined = std::get_if<ps::JoinedEvent>(&event)) {
    if (!begun_) {
      begun_ = true;
      observer_.on_phase("training");
      journal_.start_clock();
    } else {
      observer_.on_notice(joined->name + " has joined");
    }
  } else if (const auto* step = std::get_if<ps::StepEvent>(&event)) {
    if (!predictions_) serve_predictions();  // all servers are there
    state_.step = step->step.number;
    if (step->workers.size() != workers_told_) {
      workers_told_ = step->workers.size();
      observer_.on_workers(places_of(step->workers));
    }
    observer_.on_step(journal_.add(*step));
  } else if (const auto* told = std::get_if<ps::NoticeEvent>(&event)) {
    observer_.on_notice(told->text);
  } else if (const auto* lost = std::get_if<ps::ServerLostEvent>(&event)) {
    run_.withdraw(lost->server);
  } else if (const auto* pause = std::get_if<ps::PauseEvent>(&event)) {
    return on_pause(*pause);
  }
  return true;
}

bool ServedRun::on_pause(const ps::PauseEvent& pause) {
  journal_.stop_clock();
  version_ = pause.version;
  state_.step = pause.steps_done;
  state_.position = {.epoch = pause.epoch, .offset = pause.offset};
  const bool ends_epoch = pause.offset == 0 && pause.steps_done > start_step_;
  const auto every = job_.checkpoint.every_steps;
  interrupted_ = stopping_ && !pause.at_end;
  if (ends_epoch || pause.at_end || stopping_ || (every > 0 && state_.step % every == 0)) {
    save_now(pause);
  }
  if ((ends_epoch || pause.at_end) && !stopping_) {
    evaluate_now(pause.offset == 0 ? pause.epoch : pause.epoch + 1);
  }
  if (pause.at_end || stopping_) return false;
  journal_.start_clock();
  server_.resume();
  return true;
}

void ServedRun::save_now(const ps::PauseEvent&) {
  if (saved_step_ == state_.step) return;
  saved_step_ = state_.step;
  const auto states = server_.snapshot(Deadline::after(kFileTimeout));
  assemble_state(states, plan_, *model_, *optimizer_);
  require_finite_parameters(alone_, *model_, state_.step, as_milliseconds(job_.parallel.timeout_s));
  if (job_.checkpoint.dir.empty()) return;
  state_.torch_rng = random_state();
  const auto path = save_shared_checkpoint(alone_, job_.checkpoint, *model_, *optimizer_, state_);
  observer_.on_checkpoint(path.string(), state_.step);
}

void ServedRun::serve_predictions() {
  if (!run_.publish_predictions || predictions_failed_) return;
  try {
    const JobParts parts{job_, run_, server_, plan_, facts_};
    predictions_ = std::make_unique<JobPredictions>(parts, *state_.model);
    run_.publish_predictions(predictions_->endpoint());
  } catch (const Error& error) {
    predictions_.reset();
    predictions_failed_ = true;
    observer_.on_notice(fmt::format("the job serves no predictions: {}", error.what()));
  }
}

/// By the workers, while nothing changes.
void ServedRun::evaluate_now(std::int64_t epoch) {
  if (!job_.train.evaluate || evaluated_step_ == state_.step) return;
  evaluated_step_ = state_.step;
  server_.evaluate(test_chunks(data_.test));
  while (!stop_requested()) {
    const auto event = server_.next_event(Deadline::after(kLook));
    if (!event) continue;
    if (const auto* result = std::get_if<ps::EvaluatedEvent>(&*event)) {
      const auto samples = static_cast<double>(result->samples);
      journal_.add_evaluation(state_.step, result->correct / samples);
      observer_.on_evaluated(epoch, result->correct / samples, result->loss_sum / samples);
      return;
    }
    handle(*event);
  }
}

}  // namespace

int server_processes(const ParallelConfig& parallel) {
  return static_cast<int>(parallel.servers.size()) * static_cast<int>(parallel.replicas);
}

Report run_parameter_server(const Job& job, const ServerRun& run, Observer& observer) {
  ServedRun served(job, run, observer);
  return run.server == 0 ? served.coordinate() : served.serve();
}

}  // namespace bimetal::train
