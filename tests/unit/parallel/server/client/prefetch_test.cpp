// The next lease's parameters come while one is computed: each lease sees the version that it is
// said to have been computed with, and keeps seeing it.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>

#include <thread>

#include "bimetal/base/release.h"
#include "bimetal/parallel/server/client/client.h"
#include "bimetal/parallel/server/parameter_server.h"
#include "bimetal/parallel/server/shard_store.h"

namespace bimetal::parallel::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kLeases = 150;

struct Seen {
  int leases = 0;
  int other_memory = 0;  ///< leases whose parameters lie elsewhere than the one's before
  int wrong = 0;         ///< parameters of another version than the one that was told
  int changed = 0;       ///< while a lease was computed
  std::uint64_t oldest_last = 0;
};

std::vector<torch::Tensor> two_parameters() {
  return {torch::zeros({300, 7}), torch::zeros({50})};
}

/// The store of a server whose parameters are minus their version: every gradient is one.
std::unique_ptr<ShardStore> counting_store(const ShardPlan& plan, int server) {
  return std::make_unique<ShardStore>(
      plan, server, two_parameters(), [](std::vector<torch::Tensor> parameters) {
        return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(1.0));
      });
}

bool within(const torch::Tensor& values, std::uint64_t oldest, std::uint64_t newest) {
  return -values.max().item<double>() >= static_cast<double>(oldest) &&
         -values.min().item<double>() <= static_cast<double>(newest);
}

Seen work(const ClientOptions& options, const ShardPlan& plan, milliseconds compute) {
  auto parameters = two_parameters();
  Client client(options, plan, parameters, Deadline::after(seconds(10)));
  Seen seen;
  const void* memory = nullptr;
  while (const auto lease = client.next(Deadline::after(seconds(30)))) {
    client.start_pull(*lease, Client::Values::compressed);
    client.wait_for(0);
    const auto oldest = client.finish_pull();
    if (client.finished()) break;
    if (oldest < lease->version) ++seen.wrong;
    std::vector<torch::Tensor> before;
    for (const auto& parameter : parameters) {
      before.push_back(parameter.clone());
      if (!within(parameter, oldest, client.newest_pulled())) ++seen.wrong;
    }
    std::this_thread::sleep_for(compute);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      client.push(lease->id, i, torch::ones_like(parameters[i]));
    }
    client.end_push(lease->id);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!torch::equal(parameters[i], before[i])) ++seen.changed;
    }
    if (std::exchange(memory, parameters[0].data_ptr()) != parameters[0].data_ptr()) {
      ++seen.other_memory;
    }
    seen.oldest_last = oldest;
    ++seen.leases;
    client.done(lease->id, {.version = oldest, .compute_seconds = 0.001});
  }
  return seen;
}

class PrefetchedParameters : public ::testing::Test {
 protected:
  /// One worker's leases, each a step, over two servers.
  Seen run(Consistency consistency, Prefetch prefetch, std::size_t ring_bytes) {
    ServerOptions options;
    options.servers = options.shards = 2;
    options.listen = {"127.0.0.1", 0};
    options.token = net::Token::generate();
    options.facts = {"two tensors"};
    std::vector<std::unique_ptr<ShardStore>> stores;
    std::vector<std::unique_ptr<ParameterServer>> servers;
    ClientOptions client;
    for (int i = 0; i < 2; ++i) {
      options.server = i;
      stores.push_back(counting_store(plan_, i));
      servers.push_back(std::make_unique<ParameterServer>(options, *stores.back()));
      client.servers.push_back(servers.back()->endpoint());
    }
    CoordinatorOptions coordinator;
    coordinator.ledger.consistency = consistency;
    coordinator.ledger.staleness = 2;
    coordinator.ledger.prefetch = prefetch;
    coordinator.ledger.dataset_size = coordinator.ledger.global_batch = 8;
    coordinator.ledger.epochs = kLeases;
    coordinator.servers = {0, 1};
    coordinator.shards = 2;
    servers[0]->coordinate(coordinator);
    std::thread follower([&] {
      servers[1]->follow(
          servers[0]->endpoint(), std::nullopt, [](const Event&) {}, Deadline::after(seconds(10)));
    });
    client.token = options.token;
    client.ring_bytes = ring_bytes;
    client.join.release = std::string(release());
    client.join.facts = options.facts;
    Seen seen;
    std::thread worker([&] { seen = work(client, plan_, milliseconds(1)); });
    while (const auto event = servers[0]->next_event(Deadline::after(seconds(30)))) {
      if (std::holds_alternative<PauseEvent>(*event)) break;
    }
    staleness_ = servers[0]->figures().at(0).staleness_max;
    servers[0]->finish(Deadline::after(seconds(5)));
    worker.join();
    follower.join();
    return seen;
  }

  const ShardPlan plan_ =
      plan_shards(std::vector<std::int64_t>{2100, 50}, std::vector<double>{1, 1}, 400);
  std::int64_t staleness_ = -1;
};

TEST_F(PrefetchedParameters, AreThoseOfTheLeaseAndStay) {
  for (const auto consistency : {Consistency::async, Consistency::bounded}) {
    for (const std::size_t ring : {std::size_t{0}, ClientOptions().ring_bytes}) {
      const auto seen = run(consistency, Prefetch::on, ring);
      EXPECT_EQ(seen.leases, kLeases);
      EXPECT_EQ(seen.wrong, 0);
      EXPECT_EQ(seen.changed, 0);
      EXPECT_GT(seen.other_memory, kLeases / 2) << "hardly any were fetched ahead";
      EXPECT_GT(staleness_, 0);
      EXPECT_LE(staleness_, consistency == Consistency::bounded ? 2 : 3)
          << "leases at once, less one";
    }
  }
}

TEST_F(PrefetchedParameters, DoNotExistInSyncNorWhereTheyAreOff) {
  for (const auto& [consistency, prefetch] :
       {std::pair(Consistency::sync, Prefetch::on), std::pair(Consistency::async, Prefetch::off)}) {
    const auto seen = run(consistency, prefetch, 0);
    EXPECT_EQ(seen.leases, kLeases);
    EXPECT_EQ(seen.wrong + seen.changed, 0);
    EXPECT_EQ(seen.other_memory, 1) << "the first";
    EXPECT_EQ(staleness_, 0);
    EXPECT_EQ(seen.oldest_last, static_cast<std::uint64_t>(kLeases - 1));
  }
}

}  // namespace
}  // namespace bimetal::parallel::server
