#pragma once
// A job of parameter servers and workers, all threads of this process.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "bimetal/base/release.h"
#include "bimetal/data/sampler.h"
#include "bimetal/parallel/server/client/client.h"
#include "bimetal/parallel/server/client/remote_gradients.h"
#include "bimetal/parallel/server/parameter_server.h"
#include "bimetal/parallel/server/shard_store.h"
#include "bimetal/task/dropout.h"
#include "bimetal/task/segments.h"
#include "bimetal/train/server/server_setup.h"
#include "golden/plain_training.h"
#include "golden/tasks.h"

namespace bimetal::golden {

using namespace parallel::server;  // NOLINT: the test is about nothing else
using std::chrono::milliseconds;
using std::chrono::seconds;

inline constexpr std::int64_t epochs = 4;
inline constexpr int job_steps = epochs * ((sample_count + global_batch - 1) / global_batch);

struct ServerCase {
  std::string name = {};
  std::vector<double> rates = {};    ///< that each worker says of itself
  std::vector<double> servers = {};  ///< weights
  Consistency consistency = Consistency::sync;
  std::int64_t staleness = 0;
  bool adam = false;
  /// Worker 1 comes late, and vanishes in the middle of its lease number that.
  int lost_after = -1;
  net::Encryption encryption = net::Encryption::off;
  bool overlaps = false;  ///< forward begins before all parameters are there
  comm::Scheme pull = comm::Scheme::none;
  PushCompression push = {};
  torch::ScalarType dtype = torch::kFloat64;
  std::size_t ring_bytes = ClientOptions().ring_bytes;  ///< of shared memory
  Prefetch prefetch = Prefetch::off;
  optim::GradientLimits limits = {};
  std::size_t recompute = 0;  ///< units at once
};

inline void PrintTo(const ServerCase& shown, std::ostream* out) {
  *out << shown.name;
}

inline MakeOptimizer optimizer_of(bool adam) {
  return [adam](std::vector<torch::Tensor> parameters) -> std::unique_ptr<torch::optim::Optimizer> {
    if (adam) {
      return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(1e-3));
    }
    return std::make_unique<torch::optim::SGD>(
        parameters, torch::optim::SGDOptions(0.02).momentum(0.9).weight_decay(1e-3));
  };
}

/// The same job computed by one device.
inline PlainTraining one_device(const ServerCase& shown) {
  return {.optimizer = optimizer_of(shown.adam),
          .steps = job_steps,
          .from = seed,
          .dtype = shown.dtype,
          .limits = shown.limits};
}

/// The loss of samples by number, in an epoch.
inline torch::Tensor loss_sum(const task::Task& task, const task::Segments& segments,
                              std::int64_t epoch, std::span<const std::int64_t> samples) {
  const task::DrawScope scope(task::Draws::of(seed, epoch, samples));
  const auto batch = task.training()->batch(samples);
  return task.loss_sum(segments.run(task.inputs(batch)), batch);
}

/// A job of servers and workers, all threads of this process, over loopback.
class ServerJob {
 public:
  ServerJob(ServerCase shown, const task::Task& task) : case_(std::move(shown)), task_(task) {
    model_ = make_start(task, seed, case_.dtype);
    std::vector<std::int64_t> sizes;
    for (const auto& parameter : model_.parameters()) sizes.push_back(parameter.numel());
    plan_ = plan_shards(sizes, case_.servers, 500);
    for (int i = 0; i < servers(); ++i) {
      stores_.push_back(std::make_unique<ShardStore>(plan_, i, model_.parameters(),
                                                     optimizer_of(case_.adam), 0, case_.limits));
      ServerOptions options;
      options.server = i;
      options.servers = options.shards = servers();
      options.listen = {"127.0.0.1", 0};
      options.token = token_;
      options.encryption = case_.encryption;
      options.facts = {"one model"};
      servers_.push_back(std::make_unique<ParameterServer>(options, *stores_.back()));
    }
  }

  void run() {
    CoordinatorOptions options;
    options.ledger.consistency = case_.consistency;
    options.ledger.staleness = case_.staleness;
    options.ledger.prefetch = case_.prefetch;
    options.ledger.dataset_size = sample_count;
    options.ledger.global_batch = global_batch;
    options.ledger.epochs = epochs;
    options.ledger.weight = train::weights_in_order(*task_.training(), seed);
    for (int i = 1; i < servers(); ++i) options.servers.insert(i);
    options.shards = servers();
    servers_[0]->coordinate(options);
    std::vector<std::thread> threads;
    for (int i = 1; i < servers(); ++i) {
      threads.emplace_back([this, i] {
        servers_[static_cast<std::size_t>(i)]->follow(
            servers_[0]->endpoint(), std::nullopt, [](const Event&) {},
            Deadline::after(seconds(20)));
      });
    }
    for (int i = 0; i < static_cast<int>(case_.rates.size()); ++i) {
      threads.emplace_back([this, i] { work(i); });
    }
    while (const auto event = servers_[0]->next_event(Deadline::after(seconds(60)))) {
      if (std::holds_alternative<StepEvent>(*event)) ++steps_;
      if (std::holds_alternative<PauseEvent>(*event)) break;
    }
    figures_ = servers_[0]->figures();
    repeated_ = servers_[0]->samples_repeated();
    servers_[0]->finish(Deadline::after(seconds(10)));
    for (auto& thread : threads) thread.join();
  }

  /// The parameters on the servers.
  std::vector<torch::Tensor> parameters() const {
    std::vector<torch::Tensor> all;
    for (const auto& parameter : model_.parameters()) {
      all.push_back(torch::full({parameter.numel()}, 1e9, case_.dtype));
    }
    for (const auto& store : stores_) {
      for (std::size_t i = 0; i < store->pieces().size(); ++i) {
        const auto& piece = plan_.pieces[store->pieces()[i]];
        all[piece.tensor]
            .narrow(0, piece.offset, piece.count)
            .copy_(store->piece_tensors()[i].flatten());
      }
    }
    return all;
  }

  int steps() const { return steps_; }
  const ShardPlan& plan() const { return plan_; }
  /// By server 0.
  std::uint64_t bytes_sent() const { return servers_[0]->bytes_sent(); }
  std::int64_t repeated() const { return repeated_; }
  const std::vector<WorkerFigures>& figures() const { return figures_; }

 private:
  int servers() const { return static_cast<int>(case_.servers.size()); }

  void work(int worker) {
    ClientOptions options;
    for (const auto& server : servers_) options.servers.push_back(server->endpoint());
    options.token = token_;
    options.encryption = case_.encryption;
    options.join.number = worker;
    options.join.host = "here";
    options.join.device = "cpu";
    options.join.release = std::string(release());
    options.join.samples_per_s = case_.rates[static_cast<std::size_t>(worker)];
    options.join.facts = {"one model"};
    options.pull_compression = case_.pull;
    options.compression = case_.push;
    options.ring_bytes = case_.ring_bytes;
    task::Model model;
    {
      static std::mutex drawing;  // the generator is the process's
      const std::scoped_lock lock(drawing);
      model = make_start(task_, seed + 100 + static_cast<std::uint64_t>(worker), case_.dtype);
    }
    // The first worker has all samples of a step, may be taken for slow, and gets no more of them.
    if (worker == 1 && case_.lost_after >= 0) first_done_.get_future().wait_for(seconds(60));
    Client client(options, plan_, model.parameters(), Deadline::after(seconds(20)));
    RemoteGradients gradients(client, model.parameters());
    task::BeforeUse before_use;
    if (case_.overlaps) {
      before_use = [&](std::size_t unit) { gradients.wait_for(model.units[unit]); };
    }
    const task::Segments segments(model, case_.recompute, before_use);
    data::EpochSampler sampler(sample_count, seed);
    for (int leases = 0;; ++leases) {
      const auto lease = client.next(Deadline::after(seconds(60)));
      if (!lease) return;
      gradients.begin(*lease);
      sampler.seek({lease->epoch, lease->offset});
      const std::vector<std::int64_t> mine{lease->count};
      const auto indices = sampler.next(mine).indices;
      if (!case_.overlaps) gradients.wait_for_parameters();
      const auto half = indices.size() / 2;
      Done done;
      const auto backward = [&](std::span<const std::int64_t> part, bool last) {
        const auto loss = loss_sum(task_, segments, lease->epoch, part);
        last ? gradients.backward_last(loss) : gradients.backward(loss);
        done.loss_sum += loss.item<double>();
      };
      if (half > 0) backward(std::span(indices).first(half), false);
      backward(std::span(indices).subspan(half), true);
      if (worker == 1 && leases == case_.lost_after) return;  // pushed in part, never reported
      gradients.finish();
      done.version = gradients.version();
      client.done(lease->id, done);
      if (worker == 0 && leases == 0) first_done_.set_value();
    }
  }

  const ServerCase case_;
  const task::Task& task_;
  net::Token token_ = net::Token::generate();
  task::Model model_;
  ShardPlan plan_;
  std::vector<std::unique_ptr<ShardStore>> stores_;
  std::vector<std::unique_ptr<ParameterServer>> servers_;
  std::vector<WorkerFigures> figures_;
  std::promise<void> first_done_;  ///< lease of worker 0
  std::int64_t repeated_ = 0;
  int steps_ = 0;
};

}  // namespace bimetal::golden
