// When the server says that it pauses, its parameters have seen every update before the pause: what
// is saved then lacks nothing.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>

#include <memory>
#include <thread>
#include <vector>

#include "bimetal/base/release.h"
#include "bimetal/parallel/server/client/client.h"
#include "bimetal/parallel/server/parameter_server.h"
#include "bimetal/parallel/server/shard_store.h"

namespace bimetal::parallel::server {
namespace {

using std::chrono::seconds;

constexpr int kSteps = 3000;

void push_until_the_end(const ClientOptions& options, const ShardPlan& plan,
                        std::vector<torch::Tensor> parameters) {
  const auto tensors = parameters.size();
  Client client(options, plan, std::move(parameters), Deadline::after(seconds(10)));
  while (!client.finished()) {
    const auto lease = client.next(Deadline::after(std::chrono::milliseconds(100)));
    if (!lease) continue;
    for (std::size_t i = 0; i < tensors; ++i) client.push(lease->id, i, torch::ones({10}));
    client.end_push(lease->id);
    client.done(lease->id, {.version = lease->version});
  }
}

TEST(Pause, ComesAfterTheUpdatesBeforeIt) {
  const auto plan = plan_shards(std::vector<std::int64_t>{10}, std::vector<double>{1});
  ShardStore store(plan, 0, {torch::zeros({10})}, [](std::vector<torch::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(1.0));
  });
  ServerOptions options;
  options.listen = {"127.0.0.1", 0};
  options.token = net::Token::generate();
  options.facts = {"w [10] Float"};
  ParameterServer server(options, store);
  CoordinatorOptions coordinator;
  coordinator.ledger.dataset_size = coordinator.ledger.global_batch = 8;
  coordinator.ledger.epochs = kSteps;
  coordinator.ledger.pause_every = 1;
  server.coordinate(coordinator);
  ClientOptions client;
  client.servers = {server.endpoint()};
  client.token = options.token;
  client.join.release = std::string(release());
  client.join.facts = options.facts;
  std::thread worker([&] { push_until_the_end(client, plan, {torch::zeros({10})}); });
  int pauses = 0, behind = 0;
  for (const auto deadline = Deadline::after(seconds(60)); !deadline.expired();) {
    // Without sleeping, so that the question comes as soon as it can.
    const auto event = server.next_event(Deadline::after({}));
    const auto* pause = event ? std::get_if<PauseEvent>(&*event) : nullptr;
    if (!pause) continue;
    ++pauses;
    if (server.version() != pause->version) ++behind;
    if (pause->at_end) break;
    server.resume();
  }
  server.finish(Deadline::after(seconds(5)));
  worker.join();
  EXPECT_EQ(pauses, kSteps);
  EXPECT_EQ(behind, 0);
}

/// A server of a test that has two shards with two keepers each.
struct Keeper {
  Keeper(const ServerOptions& options, const ShardPlan& plan)
      : store(plan, options.server % options.shards, {torch::zeros({10}), torch::zeros({10})},
              [](std::vector<torch::Tensor> parameters) {
                return std::make_unique<torch::optim::SGD>(parameters,
                                                           torch::optim::SGDOptions(1.0));
              }),
        server(options, store) {}

  ShardStore store;
  ParameterServer server;
};

TEST(Pause, AServerThatDiesWhileItIsAskedForItsStateIsReplacedByItsCopy) {
  const auto plan = plan_shards(std::vector<std::int64_t>{10, 10}, std::vector<double>{1, 1});
  ServerOptions options;
  options.listen = {"127.0.0.1", 0};
  options.token = net::Token::generate();
  options.facts = {"two tensors"};
  options.servers = 4;
  options.shards = 2;
  std::vector<std::unique_ptr<Keeper>> keepers;
  for (options.server = 0; options.server < 4; ++options.server) {
    options.state = [server = options.server]() -> Body {
      if (server == 1) throw Error(ErrorCode::PeerLost, "this server dies when it is asked");
      return {static_cast<std::byte>(server)};
    };
    keepers.push_back(std::make_unique<Keeper>(options, plan));
  }
  auto& leader = keepers.front()->server;
  CoordinatorOptions coordinator;
  coordinator.ledger.dataset_size = coordinator.ledger.global_batch = 8;
  coordinator.ledger.pause_every = 1;
  coordinator.servers = {0, 1, 2, 3};
  coordinator.shards = 2;
  leader.coordinate(coordinator);
  std::vector<std::thread> threads;
  for (int server = 1; server < 4; ++server) {
    threads.emplace_back([&, server] {
      try {
        keepers[static_cast<std::size_t>(server)]->server.follow(
            leader.endpoint(), keepers[2]->server.endpoint(), [](const Event&) {},
            Deadline::after(seconds(20)));
      } catch (const Error&) {
        EXPECT_EQ(server, 1);
      }
    });
  }
  ClientOptions client;
  for (const auto& keeper : keepers) client.servers.push_back(keeper->server.endpoint());
  client.shards = 2;
  client.token = options.token;
  client.join.release = std::string(release());
  client.join.facts = options.facts;
  std::thread worker([&] {
    push_until_the_end(client, plan, {torch::zeros({10}), torch::zeros({10})});
  });
  bool paused = false;
  for (const auto deadline = Deadline::after(seconds(60)); !paused && !deadline.expired();) {
    const auto event = leader.next_event(Deadline::after(std::chrono::milliseconds(100)));
    paused = event && std::holds_alternative<PauseEvent>(*event);
  }
  EXPECT_TRUE(paused);
  const auto states = leader.snapshot(Deadline::after(seconds(30)));
  ASSERT_EQ(states.size(), 2u);
  EXPECT_EQ(states[0].bytes, (Body{std::byte{0}}));
  EXPECT_EQ(states[1].bytes, (Body{std::byte{3}}));
  leader.finish(Deadline::after(seconds(5)));
  worker.join();
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace bimetal::parallel::server
