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

}  // namespace
}  // namespace bimetal::parallel::server
