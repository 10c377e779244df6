// Messages that a server refuses: it says why on both sides, and goes on serving the others.

#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include "bimetal/base/error.h"
#include "bimetal/base/release.h"
#include "bimetal/comm/compress/dense_reduction.h"
#include "bimetal/parallel/server/client/client.h"
#include "bimetal/parallel/server/link/questions.h"
#include "bimetal/parallel/server/parameter_server.h"
#include "bimetal/parallel/server/shard_store.h"
#include "support/errors.h"

namespace bimetal::parallel::server {
namespace {

using std::chrono::seconds;
using Sizes = std::vector<std::int64_t>;

constexpr std::uint8_t kFloat32 = static_cast<std::uint8_t>(comm::DType::float32);
constexpr std::uint64_t kLease = (std::uint64_t{7} << 32) | 1;

MakeOptimizer plain_sgd() {
  return [](std::vector<torch::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(1.0));
  };
}

class Store : public ::testing::Test {
 protected:
  Store()
      : parameters_{torch::ones({10}), torch::ones({4})},
        plan_(plan_shards(Sizes{10, 4}, std::vector<double>{1}, 6)),
        store_(plan_, 0, parameters_, plain_sgd()) {}

  void push(std::uint64_t lease, std::uint32_t piece, float value) {
    const auto count = static_cast<std::size_t>(plan_.pieces[piece].count);
    const auto place = store_.place(lease, piece, kFloat32, {comm::Scheme::none}, 4 * count);
    std::fill_n(reinterpret_cast<float*>(place.data()), count, value);
    store_.received(lease, piece);
  }
  double first(std::size_t piece) { return store_.piece_tensors()[piece][0].item<double>(); }

  std::vector<torch::Tensor> parameters_;
  ShardPlan plan_;
  ShardStore store_;
};

TEST_F(Store, TakesGradientsOfTheirOwnLengthAlone) {
  for (const std::uint64_t bytes : {0ull, 19ull, 21ull, 1ull << 60}) {
    EXPECT_THROW(store_.place(kLease, 0, kFloat32, {comm::Scheme::none}, bytes), Error) << bytes;
  }
  EXPECT_THROW(store_.place(kLease, 99, kFloat32, {comm::Scheme::none}, 20), Error);
  EXPECT_THROW(store_.place(kLease, 0, 0, {comm::Scheme::none}, 20), Error);
  EXPECT_THROW(store_.place(kLease, 0, kFloat32, {comm::Scheme::topk}, 20), Error);
  EXPECT_THROW(store_.place(kLease, 0, kFloat32, {static_cast<comm::Scheme>(77)}, 20), Error);
  EXPECT_EQ(store_.staged_leases(), 0u);
  push(kLease, 0, 1);
  EXPECT_THROW(store_.place(kLease, 0, kFloat32, {comm::Scheme::none}, 20), Error) << "twice";
  EXPECT_THROW(store_.close_lease(kLease, 3), Error) << "pieces are missing";
}

TEST_F(Store, ForgetsWhatWasDroppedWhenItComes) {
  store_.drop(kLease);
  push(kLease, 0, 1);
  store_.close_lease(kLease, 1);
  EXPECT_EQ(store_.staged_leases(), 0u);
  EXPECT_THROW(store_.apply(1, {1, 1, {kLease}, {}}), Error);
  push(kLease + 1, 0, 1);
  store_.forget_worker(7);
  EXPECT_EQ(store_.staged_leases(), 0u);
}

TEST_F(Store, AWorkerCannotFillTheMemory) {
  std::uint64_t lease = kLease;
  const auto fill = [&] {
    for (int i = 0; i < 100000; ++i) push(lease++, 0, 1);
  };
  EXPECT_THROW(fill(), Error);
  push((std::uint64_t{8} << 32) | 1, 0, 1);  // another worker's
}

class Refusals : public Store {
 protected:
  Refusals() {
    ServerOptions options;
    options.listen = {"127.0.0.1", 0};
    options.token = token_;
    options.facts = {"train.seed = 1", "w [10] Float"};
    server_ = std::make_unique<ParameterServer>(options, store_);
    CoordinatorOptions coordinator;
    coordinator.ledger.dataset_size = coordinator.ledger.global_batch = 8;
    server_->coordinate(coordinator);
    client_.servers = {server_->endpoint()};
    client_.token = token_;
    client_.join.host = "mac";
    client_.join.release = std::string(release());
    client_.join.facts = options.facts;
  }

  std::unique_ptr<Client> connect() {
    return std::make_unique<Client>(client_, client_plan_, parameters_,
                                    Deadline::after(seconds(10)));
  }
  void expect_refused(ErrorCode code, const std::string& text) {
    expect_error(code, {text}, [&] { connect(); });
  }

  net::Token token_ = net::Token::generate();
  std::unique_ptr<ParameterServer> server_;
  ClientOptions client_;
  ShardPlan client_plan_ = plan_;
};

TEST_F(Refusals, AnotherModelAnotherReleaseAndAnotherToken) {
  client_.join.facts[1] = "w [11] Float";
  expect_refused(ErrorCode::CallMismatch, "'w [11] Float' where the servers have 'w [10] Float'");
  client_.join.facts = {"train.seed = 1"};
  expect_refused(ErrorCode::CallMismatch, "another model");
  client_.join.facts = {"train.seed = 1", "w [10] Float"};
  client_.join.release = "0.0.1";
  expect_refused(ErrorCode::ProtocolMismatch, "0.0.1");
  client_.join.release = std::string(release());
  client_.job_id = "another job";
  expect_refused(ErrorCode::Unauthorized, "job");
  client_.job_id = "job";
  client_.token = net::Token::generate();
  expect_refused(ErrorCode::Unauthorized, "token");
  client_.token = token_;
  EXPECT_EQ(connect()->number(), 0);
}

TEST_F(Refusals, APushOfAnotherLengthAndForAnotherWorkersLease) {
  for (const bool foreign : {false, true}) {
    client_plan_ = foreign ? plan_ : plan_shards(Sizes{10, 4}, std::vector<double>{1}, 10);
    const auto client = connect();
    const auto lease = client->next(Deadline::after(seconds(10)));
    ASSERT_TRUE(lease);
    client->push(foreign ? lease->id + (std::uint64_t{1} << 32) : lease->id, 0, torch::ones({10}));
    expect_error(ErrorCode::CorruptData, {foreign ? "not this worker's" : "were expected"},
                 [&] { client->next(Deadline::after(seconds(10))); });
  }
  client_plan_ = plan_;
  const auto honest = connect();
  EXPECT_TRUE(honest->next(Deadline::after(seconds(10)))) << "the lease goes to another one";
  EXPECT_EQ(first(0), 1) << "nothing has changed";
}

TEST_F(Refusals, AReaderFetchesParametersAndTakesPartInNothingElse) {
  client_.join.role = Role::reader;
  const auto reader = connect(), second = connect();
  const torch::NoGradGuard no_grad;
  parameters_[0].zero_();
  reader->start_pull(0, Client::Values::exact);
  EXPECT_EQ(reader->finish_pull(), 0u);
  EXPECT_EQ(reader->newest_pulled(), 0u);
  EXPECT_EQ(parameters_[0].sum().item<double>(), 10);
  EXPECT_FALSE(second->next(Deadline::after(std::chrono::milliseconds(100))))
      << "no work is for it";
  reader->end_push(kLease);
  EXPECT_THROW(reader->next(Deadline::after(seconds(10))), Error);
  second->push(kLease, 0, torch::ones({10}));
  EXPECT_THROW(second->next(Deadline::after(seconds(10))), Error);
  client_.join.role = Role::worker;
  const auto worker = connect();
  EXPECT_EQ(worker->number(), 0) << "readers do not count";
  EXPECT_TRUE(worker->next(Deadline::after(seconds(10))));
}

TEST_F(Refusals, WhoHasTheTokenMayAskWhoLeads) {
  const auto at = server_->endpoint();
  const auto ask = [&at](const net::Token& token) {
    return who_leads(at, "server 0", {token, net::Encryption::off, "job"});
  };
  EXPECT_EQ(ask(token_), 0);
  EXPECT_EQ(ask(net::Token::generate()), std::nullopt);
  EXPECT_EQ(connect()->number(), 0) << "who asks has not joined";
  server_.reset();
  EXPECT_EQ(ask(token_), std::nullopt) << "nobody listens";
}

TEST_F(Refusals, NothingListensBeyondLoopbackWithoutAToken) {
  ServerOptions options;
  options.listen = {"0.0.0.0", 0};
  EXPECT_THROW(ParameterServer(options, store_), Error);
}

TEST(Compression, IsRefusedWhereItCannotWork) {
  ClientOptions options;
  options.servers = {{"127.0.0.1", 1}};
  const auto plan = plan_shards(Sizes{4}, std::vector<double>{1});
  options.compression = {.scheme = comm::Scheme::topk, .density = 0};
  EXPECT_THROW(Client(options, plan, {torch::ones({4})}, Deadline::after(seconds(1))), Error);
  options.compression = {.scheme = comm::Scheme::powersgd, .rank = 256};
  EXPECT_THROW(Client(options, plan, {torch::ones({4})}, Deadline::after(seconds(1))), Error);
  options.compression = {.scheme = comm::Scheme::int8};
  EXPECT_THROW(
      Client(options, plan, {torch::ones({4}, torch::kFloat64)}, Deadline::after(seconds(1))),
      Error);
  options.compression = {};
  options.pull_compression = comm::Scheme::sign;
  EXPECT_THROW(Client(options, plan, {torch::ones({4})}, Deadline::after(seconds(1))), Error);
}

}  // namespace
}  // namespace bimetal::parallel::server
