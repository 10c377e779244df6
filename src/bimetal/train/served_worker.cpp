#include <fmt/format.h>
#include <torch/torch.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "bimetal/balance/cost_model.h"
#include "bimetal/base/error.h"
#include "bimetal/base/release.h"
#include "bimetal/base/stopwatch.h"
#include "bimetal/comm/transport.h"
#include "bimetal/data/sampler.h"
#include "bimetal/device/device.h"
#include "bimetal/net/solo_mesh.h"
#include "bimetal/parallel/server/client.h"
#include "bimetal/parallel/server/remote_gradients.h"
#include "bimetal/train/evaluate.h"
#include "bimetal/train/gradient_compression.h"
#include "bimetal/train/micro_batch.h"
#include "bimetal/train/out_of_memory.h"
#include "bimetal/train/served_data.h"
#include "bimetal/train/served_job.h"
#include "bimetal/train/served_setup.h"
#include "bimetal/train/setup.h"
#include "bimetal/train/step_probe.h"

namespace bimetal::train {
namespace {

namespace ps = parallel::server;
using std::chrono::milliseconds;

constexpr milliseconds kLookForWork{200};

milliseconds whole_milliseconds(double seconds) {
  return milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

/// One worker's run. Its members are made in the order of their declaration.
class ServedWorker {
 public:
  ServedWorker(const Job& job, const ServedWorkerRun& run, Observer& observer);
  bool work();

 private:
  data::TrainTest load_data(Observer& observer) const;
  balance::CostModel measure_cost() const;
  ps::PushCompression push_compression() const;
  ps::ClientOptions client_options() const;
  ps::Done train(const ps::Lease& lease);
  double compute(const data::Batch& batch);
  ps::Done evaluate(const ps::Lease& lease);
  data::Batch batch_of(const ps::Lease& lease);

  const Job& job_;
  const ServedWorkerRun& run_;
  Place place_;
  data::TrainTest data_;
  balance::CostModel cost_;
  std::shared_ptr<models::Classifier> model_;
  ps::Client client_;
  ps::RemoteGradients gradients_;
  data::EpochSampler sampler_;
  MicroBatch micro_batch_;
};

ServedWorker::ServedWorker(const Job& job, const ServedWorkerRun& run, Observer& observer)
    : job_(job),
      run_(run),
      place_(choose_place(job_, run_.trainer)),
      data_(load_data(observer)),
      cost_(measure_cost()),
      model_(make_seeded_model(job_, data_.train, place_)),
      client_(client_options(), plan_of_model(job_, *model_), model_->parameters(),
              Deadline::after(whole_milliseconds(job_.cluster.join_timeout_s))),
      gradients_(client_, model_->parameters()),
      sampler_(data_.train.size(), job_.train.seed),
      micro_batch_(job_.train.micro_batch, place_.device) {
  observer.on_phase("training");
  model_->train();
  model_->before_use([this](const torch::nn::Module& child) { gradients_.wait_for(child); });
}

data::TrainTest ServedWorker::load_data(Observer& observer) const {
  auto alone = comm::make_group(net::make_solo_mesh(run_.trainer.host_name), {});
  const DataSender sender{run_.find_data, credentials_of(run_.network)};
  return load_served_data(job_,
                          find_served_data(std::move(alone), job_, run_.trainer, sender, observer));
}

/// So that already the first leases fit this device.
balance::CostModel ServedWorker::measure_cost() const {
  return probe_step(
      job_, data_.train,
      {.device = place_.device, .dtype = place_.dtype, .speed = run_.trainer.worker.speed});
}

ps::PushCompression ServedWorker::push_compression() const {
  // Momentum stays with the servers' optimizer.
  const auto how = gradient_compression(job_, 1);
  return {how.compression.scheme, how.compression.density, how.warmup_steps, how.compression.rank};
}

ps::ClientOptions ServedWorker::client_options() const {
  ps::ClientOptions options;
  options.servers = run_.servers;
  options.gone = run_.gone;
  options.shards = static_cast<int>(job_.parallel.servers.size());
  options.token = run_.network.token;
  options.encryption = run_.network.encryption;
  options.job_id = run_.network.job_id;
  options.join.number = run_.number;
  options.join.host = run_.trainer.host_name;
  options.join.device = place_.device.str();
  options.join.release = std::string(release());
  if (cost_.known() && cost_.beta() > 0) {
    options.join.samples_per_s = 1 / cost_.beta();
    options.join.step_seconds = cost_.alpha();
  }
  options.join.facts = served_facts(job_, data_, *model_);
  options.timeout = whole_milliseconds(job_.parallel.timeout_s);
  options.compression = push_compression();
  options.give_up = [stop = run_.trainer.stop_requested, over = run_.over] {
    return (stop && stop()) || (over && over());
  };
  options.lost = run_.lost;
  options.pull_compression = comm::scheme_of(job_.parallel.pull_compression);
  const auto transport =
      comm::transport_for(comm::transport_of(job_.fabric.transport, "fabric.transport"));
  if (transport == comm::Transport::tcp) options.ring_bytes = 0;
  return options;
}

data::Batch ServedWorker::batch_of(const ps::Lease& lease) {
  sampler_.seek({.epoch = lease.epoch, .offset = lease.offset});
  const std::array counts{lease.count};
  auto step = sampler_.next(counts);
  if (step.epoch != lease.epoch || step.total != lease.count) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("server 0 has leased samples {} … {} of epoch {}, which do not exist",
                            lease.offset, lease.offset + lease.count, lease.epoch));
  }
  const auto indices = torch::from_blob(step.indices.data(), {lease.count}, torch::kInt64).clone();
  auto batch = data::make_batch(data_.train, indices, place_.dtype);
  return {batch.x.to(place_.device), batch.y.to(place_.device)};
}

/// The sum of the samples' losses.
double ServedWorker::compute(const data::Batch& batch) {
  std::vector<std::pair<torch::Tensor, std::int64_t>> losses;
  micro_batch_.for_each(batch, [&](const data::Batch& piece, bool last) {
    const auto samples = piece.y.size(0);
    const auto loss = torch::nn::functional::cross_entropy(model_->forward(piece.x), piece.y);
    if (last) {
      gradients_.backward_last(loss, samples);
    } else {
      gradients_.backward(loss, samples);
    }
    losses.emplace_back(loss.detach(), samples);
  });
  gradients_.finish();
  device::synchronize(place_.device);
  double sum = 0;
  for (const auto& [loss, samples] : losses) {
    sum += loss.item<double>() * static_cast<double>(samples);
  }
  return sum;
}

ps::Done ServedWorker::train(const ps::Lease& lease) {
  client_.set_step((lease.epoch * data_.train.size() + lease.offset) / job_.train.global_batch);
  gradients_.begin(lease);
  const Stopwatch preparing;
  const auto batch = batch_of(lease);
  const double prepared = preparing.seconds();
  ps::Done done;
  const Stopwatch watch;  // of computing, and of what forward waits for parameters
  for (bool again = true; again;) {
    try {
      done.loss_sum = compute(batch);
      again = false;
    } catch (...) {
      if (!is_out_of_memory(std::current_exception())) throw;
      if (!gradients_.start_over() || !micro_batch_.halve(lease.count)) throw;
    }
    if (again) release_cached_memory(place_.device);
  }
  const double waited = gradients_.pull_seconds();
  device::pause_for_speed(run_.trainer.worker.speed, watch.seconds() - waited + prepared);
  done.compute_seconds = watch.seconds() - waited + prepared;
  done.version = gradients_.version();
  done.communicate_seconds = done.wait_seconds = waited;
  return done;
}

ps::Done ServedWorker::evaluate(const ps::Lease& lease) {
  client_.start_pull(lease, ps::Client::Values::exact);
  ps::Done done;
  done.version = client_.finish_pull();
  if (lease.offset + lease.count > test_chunks(data_.test)) {
    throw Error(ErrorCode::CorruptData, "server 0 has leased test samples that do not exist");
  }
  const auto sums = evaluate_chunks(
      *model_, data_.test, lease.offset, lease.count,
      {.device = place_.device, .dtype = place_.dtype, .speed = run_.trainer.worker.speed});
  done.correct = sums.correct;
  done.loss_sum = sums.loss;
  done.samples = sums.samples;
  return done;
}

bool ServedWorker::work() {
  double waited = 0;
  for (Stopwatch idle;;) {
    if (run_.trainer.stop_requested && run_.trainer.stop_requested()) {
      client_.leave();
      return false;
    }
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

std::string first_line_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

bool run_served_worker(const Job& job, const ServedWorkerRun& run, Observer& observer) {
  try {
    return ServedWorker(job, run, observer).work();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const bool memory = is_out_of_memory(std::current_exception());
    throw Error(memory ? ErrorCode::OutOfMemory : ErrorCode::Internal,
                fmt::format("worker {}{}: {}", run.number, memory ? " ran out of memory" : "",
                            first_line_of(error)),
                run.number >= 0 ? std::optional(run.number) : std::nullopt);
  }
}

}  // namespace bimetal::train
