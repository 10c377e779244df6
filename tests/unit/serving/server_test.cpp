// Which client gets which answer, which requests are put together, and which ones servers and
// clients refuse.

#include <future>
#include <thread>

#include "bimetal/rendezvous/store.h"
#include "support/tcp_proxy.h"
#include "unit/serving/sum_server.h"

namespace bimetal::serving {
namespace {

using namespace testing;

class Serving : public SumServer {};

TEST_F(Serving, WhatIsAlteredOnTheWayIsNotAnswered) {
  serve();
  const Pixels pixels{'p', 'i', 'x', 'e', 'l', 's'};
  const auto sum = sums_of(pixels)[0];
  for (const bool question : {true, false}) {
    bimetal::testing::TcpProxy proxy(server_->endpoint());
    Client far({proxy.endpoint(), options_.token, options_.encryption});
    EXPECT_EQ(ask(far, pixels).logits, sums_of(pixels));
    proxy.alter(question ? std::string(pixels.begin(), pixels.end())
                         : std::string(reinterpret_cast<const char*>(&sum), sizeof(sum)));
    expect_error(ErrorCode::CorruptData, "the server of predictions at 127.0.0.1",
                 [&] { ask(far, pixels); });
    expect_served();
  }
}

TEST_F(Serving, EachClientGetsItsOwnAnswersAndBatchesAreShared) {
  constexpr int kClients = 8, kRequests = 40;
  serve({.max_batch = 64, .max_delay = milliseconds(20)});
  model_.pause = milliseconds(2);
  std::vector<std::thread> clients;
  for (unsigned c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      auto own = client();
      for (unsigned i = 0; i < kRequests; ++i) {
        const auto pixels = some_pixels(1 + (c + i) % 3, 100 * c + i);
        const auto said = ask(own, pixels);
        EXPECT_EQ(said.logits, sums_of(pixels));
        EXPECT_EQ(said.weights.newest, said.weights.oldest + 10);
      }
    });
  }
  for (auto& thread : clients) thread.join();
  const auto figures = server_->figures();
  EXPECT_EQ(figures.requests, std::uint64_t{kClients * kRequests});
  EXPECT_LT(figures.batches, figures.requests / 2);
  EXPECT_EQ(figures.refused, 0u);
  EXPECT_GT(figures.latency_median_s, 0.0);
  EXPECT_GE(figures.latency_p99_s, figures.latency_median_s);
}

TEST_F(Serving, MoreThanARequestCanHaveGoesInSeveral) {
  serve({.max_batch = 1 << 20});
  auto own = client();
  const auto most = most_samples(model_.facts(), comm::DType::uint8);
  const auto pixels = some_pixels(2 * most + 7, 3);
  EXPECT_EQ(ask(own, pixels).logits, sums_of(pixels));
  EXPECT_EQ(server_->figures().requests, 3u);
}

TEST_F(Serving, WhoWaitsIsToldThatTheServerEnds) {
  serve({.max_batch = 1, .max_delay = milliseconds(0)});
  model_.held = true;
  auto asked = std::async(std::launch::async, [this] {
    auto own = client();
    expect_error(ErrorCode::Aborted, "has ended", [&] { ask(own, some_pixels(2, 1)); });
  });
  while (!model_.computing) std::this_thread::sleep_for(milliseconds(1));
  auto ended = std::async(std::launch::async, [this] { server_.reset(); });
  std::this_thread::sleep_for(milliseconds(50));
  model_.held = false;  // the first sample is computed, the second one is left
  ended.get();
}

TEST_F(Serving, AFailedBatchIsToldAndTheNextOneIsComputed) {
  serve({.max_batch = 2});
  model_.fails = true;
  auto own = client();
  const auto pixels = some_pixels(5, 1);
  expect_error(ErrorCode::NotFinite, "cannot add", [&] { ask(own, pixels); });
  model_.fails = false;
  EXPECT_EQ(ask(own, pixels).logits, sums_of(pixels));
  EXPECT_EQ(server_->figures().refused, 1u);
}

TEST_F(Serving, TooMuchAtOnceIsTurnedAway) {
  serve({.max_batch = 1, .max_delay = milliseconds(0), .max_waiting = 4});
  model_.held = true;
  auto asked = std::async(std::launch::async, [this] {
    auto own = client();
    const auto pixels = some_pixels(4, 1);
    EXPECT_EQ(ask(own, pixels).logits, sums_of(pixels));
  });
  while (!model_.computing) std::this_thread::sleep_for(milliseconds(1));
  auto own = client();  // one is computed
  expect_error(ErrorCode::Aborted, "busy: 3 samples wait", [&] { ask(own, some_pixels(2, 9)); });
  model_.held = false;
  asked.get();
  expect_served();
}

TEST_F(Serving, TooManyClientsAreTurnedAway) {
  serve({}, 2);
  auto first = client(), second = client(), third = client();
  first.facts(in_half_a_minute());
  second.facts(in_half_a_minute());
  expect_error(ErrorCode::Aborted, "busy: it has 2 clients",
               [&] { third.facts(in_half_a_minute()); });
  EXPECT_EQ(ask(first, some_pixels(1, 1)).logits.size(), 2u);
}

TEST_F(Serving, EncryptedOrNotAsTheServerWants) {
  options_.encryption = net::Encryption::on;
  serve();
  expect_served();
  Client plain({server_->endpoint(), options_.token, net::Encryption::off});
  expect_error(ErrorCode::InvalidArgument, "BIMETAL_ENCRYPTION",
               [&] { plain.facts(in_half_a_minute()); });
}

TEST_F(Serving, AStrangersTokenAndAnOpenPortWithoutOne) {
  serve();
  Client stranger({server_->endpoint(), net::Token::generate()});
  expect_error(ErrorCode::Unauthorized, "token", [&] { stranger.facts(in_half_a_minute()); });
  expect_served();
  ServerOptions open;
  open.listen = {"0.0.0.0", 0};
  EXPECT_THROW(Server(open, model_), Error);
}

TEST_F(Serving, ServersThatAreNotThereOrSayNothing) {
  serve();
  const auto at = server_->endpoint();
  server_.reset();
  Client nobody({at, options_.token});
  expect_error(ErrorCode::Timeout, "could not be reached",
               [&] { nobody.facts(Deadline::after(milliseconds(300))); });
  serve();
  model_.held = true;
  auto own = client();
  expect_error(ErrorCode::Timeout, "in time", [&] {
    const auto pixels = some_pixels(1, 1);
    own.predict(std::as_bytes(std::span(pixels)), comm::DType::uint8, 1,
                Deadline::after(milliseconds(300)));
  });
  model_.held = false;
  expect_served();
}

TEST_F(Serving, ClientsAreToldOfSamplesThatTheModelDoesNotTake) {
  serve();
  auto own = client();
  const Pixels pixels(13);
  const auto bytes = std::as_bytes(std::span(pixels));
  expect_error(ErrorCode::InvalidArgument, "takes images of 1x2x3",
               [&] { own.predict(bytes, comm::DType::uint8, 2, in_half_a_minute()); });
  expect_error(ErrorCode::InvalidArgument, "not int64",
               [&] { own.predict(bytes, comm::DType::int64, 2, in_half_a_minute()); });
  expect_error(ErrorCode::InvalidArgument, "are none",
               [&] { own.predict({}, comm::DType::uint8, 0, in_half_a_minute()); });
}

}  // namespace
}  // namespace bimetal::serving
