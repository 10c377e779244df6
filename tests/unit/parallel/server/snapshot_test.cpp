// A server's state takes far longer to arrive than parallel.timeout_s: it arrives, and if the job
// ends meanwhile nothing more of it is taken in.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>

#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "bimetal/parallel/server/parameter_server.h"
#include "bimetal/parallel/server/shard_store.h"
#include "support/tcp_proxy.h"

namespace bimetal::parallel::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::TcpProxy;

constexpr milliseconds kTimeout{1000};
/// In pieces of at most 64 KiB, each of which waits that long: five times the timeout at least.
constexpr std::size_t kStateBytes = 3'300'000;
constexpr milliseconds kDelay{100};

Body some_state() {
  Body state(kStateBytes);
  for (std::size_t i = 0; i < state.size(); ++i) state[i] = static_cast<std::byte>(i * 7 + i / 251);
  return state;
}

/// Two servers with a shard each, and a slow network between them.
class Snapshot : public ::testing::Test {
 protected:
  Snapshot()
      : plan_(plan_shards(std::vector<std::int64_t>{50000, 50000}, std::vector<double>{1, 1})),
        leader_store_(store_of(0)),
        follower_store_(store_of(1)),
        leader_(options_of(0), leader_store_),
        follower_(options_of(1), follower_store_),
        network_(leader_.endpoint()) {
    CoordinatorOptions coordinator;
    coordinator.ledger.dataset_size = coordinator.ledger.global_batch = 8;
    coordinator.servers = {0, 1};
    coordinator.shards = 2;
    leader_.coordinate(coordinator);
    serving_ = std::thread([this] {
      try {
        follower_.follow(
            network_.endpoint(), std::nullopt, [](const Event&) {}, Deadline::after(seconds(20)));
      } catch (const Error& error) {
        ended_by_ = error.what();
      }
    });
    for (const auto by = Deadline::after(seconds(20)); !leader_.complete() && !by.expired();) {
      std::this_thread::sleep_for(milliseconds(10));
    }
    network_.delay(kDelay);
  }
  ~Snapshot() override {
    network_.delay(milliseconds(0));
    leader_.finish(Deadline::after(seconds(5)));
    serving_.join();
  }

  ShardStore store_of(int server) {
    return ShardStore(plan_, server, {torch::zeros({50000}), torch::zeros({50000})},
                      [](std::vector<torch::Tensor> parameters) {
                        return std::make_unique<torch::optim::SGD>(parameters,
                                                                   torch::optim::SGDOptions(1.0));
                      });
  }
  ServerOptions options_of(int server) {
    ServerOptions options;
    options.server = server;
    options.servers = options.shards = 2;
    options.listen = {"127.0.0.1", 0};
    options.token = token_;
    options.facts = {"two tensors"};
    options.timeout = kTimeout;
    options.state = [server] { return server == 0 ? Body{std::byte{1}} : some_state(); };
    return options;
  }

  const net::Token token_ = net::Token::generate();
  const ShardPlan plan_;
  ShardStore leader_store_, follower_store_;
  ParameterServer leader_, follower_;
  TcpProxy network_;
  std::thread serving_;
  std::string ended_by_;
};

TEST_F(Snapshot, OfAServerBehindASlowLinkIsNoSilence) {
  const auto states = leader_.snapshot(Deadline::after(seconds(60)));
  ASSERT_EQ(states.size(), 2u);
  EXPECT_EQ(states[0].bytes, Body{std::byte{1}});
  EXPECT_TRUE(states[1].bytes == some_state());
}

TEST_F(Snapshot, IsCutOffInItsMidstWhenTheJobFails) {
  std::thread asking([&] { EXPECT_THROW(leader_.snapshot(Deadline::after(seconds(60))), Error); });
  const auto arrived = [&] { return network_.passed(TcpProxy::Direction::to_server); };
  const auto before = arrived();
  for (const auto by = Deadline::after(seconds(20));
       arrived() < before + kStateBytes / 4 && !by.expired();) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_LT(arrived(), before + kStateBytes) << "the rest is still to come";
  leader_.abort(Error(ErrorCode::NotFinite, "the job has failed"));
  asking.join();
  serving_.join();
  serving_ = std::thread([] {});
  EXPECT_NE(ended_by_.find("the job has failed"), std::string::npos) << ended_by_;
}

}  // namespace
}  // namespace bimetal::parallel::server
