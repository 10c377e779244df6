// A server and its clients, with a model that is a sum: who gets which answer, what is put
// together, and what is refused without harm to others.

#include "bimetal/serving/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/io_context.hpp>
#include <asio/use_future.hpp>
#include <asio/write.hpp>
#include <atomic>
#include <cstring>
#include <future>
#include <list>
#include <thread>

#include "bimetal/net/tcp/dial.h"
#include "bimetal/rendezvous/store.h"
#include "bimetal/serving/client.h"
#include "bimetal/serving/wire.h"

namespace bimetal::serving {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using Pixels = std::vector<std::uint8_t>;

constexpr std::int64_t kValues = 6;  // of a sample

Deadline in_half_a_minute() {
  return Deadline::after(std::chrono::seconds(30));
}

/// Logits of a sample: the sum of its pixels, and its negative.
class SumModel : public Model {
 public:
  ModelFacts facts() const override {
    return {.release = "1", .model = "sum", .channels = 1, .height = 2, .width = 3, .classes = 2};
  }
  WeightsVersion answer(std::span<const Samples> parts, std::span<double> logits) override {
    if (fails) throw Error(ErrorCode::NotFinite, "it cannot add today");
    computing = true;
    std::this_thread::sleep_for(pause);
    while (held) std::this_thread::sleep_for(milliseconds(1));
    std::size_t next = 0;
    for (const Samples& part : parts) {
      EXPECT_EQ(part.values.size(), static_cast<std::size_t>(part.count * kValues));
      for (std::int64_t i = 0; i < part.count; ++i) {
        double sum = 0;
        for (const auto pixel :
             part.values.subspan(static_cast<std::size_t>(i * kValues), kValues)) {
          sum += static_cast<double>(pixel);
        }
        logits[next++] = sum;
        logits[next++] = -sum;
      }
    }
    EXPECT_EQ(next, logits.size());
    return {++batches, batches + 10};
  }

  std::atomic<bool> fails{false}, held{false}, computing{false};
  std::int64_t batches = 0;
  milliseconds pause{0};
};

Pixels some_pixels(std::int64_t samples, unsigned seed) {
  Pixels pixels(static_cast<std::size_t>(samples * kValues));
  for (auto& pixel : pixels) pixel = static_cast<std::uint8_t>(seed = seed * 1103515245 + 12345);
  return pixels;
}

std::vector<double> sums_of(const Pixels& pixels) {
  std::vector<double> logits;
  for (std::size_t i = 0; i < pixels.size(); i += kValues) {
    double sum = 0;
    for (std::size_t p = i; p < i + kValues; ++p) sum += pixels[p];
    logits.push_back(sum);
    logits.push_back(-sum);
  }
  return logits;
}

class Serving : public ::testing::Test {
 protected:
  void serve(BatcherOptions batching = {}, std::size_t max_clients = 256) {
    options_.listen = server_ ? server_->endpoint() : net::Endpoint{"127.0.0.1", 0};
    options_.batching = batching;
    options_.max_clients = max_clients;
    server_.reset();
    server_ = std::make_unique<Server>(options_, model_);
  }
  Client client() { return Client({server_->endpoint(), options_.token, options_.encryption}); }
  Predicted ask(Client& client, const Pixels& pixels) {
    return client.predict(std::as_bytes(std::span(pixels)), comm::DType::uint8,
                          static_cast<std::int64_t>(pixels.size()) / kValues, in_half_a_minute());
  }
  void expect_served() {
    auto other = client();
    const auto pixels = some_pixels(3, 5);
    EXPECT_EQ(ask(other, pixels).logits, sums_of(pixels));
  }
  template <typename Action>
  void expect_error(ErrorCode code, const std::string& text, Action action) {
    try {
      action();
      ADD_FAILURE() << "no error of '" << text << "'";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(text));
    }
  }

  SumModel model_;
  ServerOptions options_{.listen = {}, .token = net::Token::generate(), .batching = {}};
  std::unique_ptr<Server> server_;
};

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

TEST_F(Serving, OneByOneWhereBatchesAreOff) {
  serve({.max_batch = 1});
  auto own = client();
  const auto pixels = some_pixels(5, 1);
  const auto said = ask(own, pixels);
  EXPECT_EQ(said.logits, sums_of(pixels));
  EXPECT_EQ(server_->figures().batches, 5u);
  EXPECT_EQ(said.weights, (WeightsVersion{1, 15})) << "from the first batch to the last";
}

TEST_F(Serving, MoreThanARequestCanHaveGoesInSeveral) {
  serve({.max_batch = 1 << 20});
  auto own = client();
  const auto most = most_samples(model_.facts(), comm::DType::uint8);
  const auto pixels = some_pixels(2 * most + 7, 3);
  EXPECT_EQ(ask(own, pixels).logits, sums_of(pixels));
  EXPECT_EQ(server_->figures().requests, 3u);
}

TEST_F(Serving, AClientConnectsAnewToAServerThatWasStartedAnew) {
  serve();
  auto own = client();
  const auto pixels = some_pixels(2, 3);
  ask(own, pixels);
  serve();
  EXPECT_EQ(ask(own, pixels).logits, sums_of(pixels));
  EXPECT_EQ(own.figures(in_half_a_minute()).requests, 1u);
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

TEST_F(Serving, AJobsDirectoryTellsWhoAnswers) {
  serve();
  rendezvous::StoreServer directory({"127.0.0.1", 0}, options_.token, net::Encryption::off);
  Client own({directory.endpoint(), options_.token});
  expect_error(ErrorCode::Unsupported, "serves no predictions",
               [&] { own.facts(in_half_a_minute()); });
  const auto store = rendezvous::connect_store(directory.endpoint(), options_.token,
                                               in_half_a_minute(), net::Encryption::off);
  store->set(kDirectoryKey, net::to_string(server_->endpoint()), in_half_a_minute());
  const auto pixels = some_pixels(2, 1);
  EXPECT_EQ(ask(own, pixels).logits, sums_of(pixels));
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

// ---- clients of another make
// ----------------------------------------------------------------------

/// Knows the token, and says whatever it likes.
class RawClient {
 public:
  RawClient(const net::Endpoint& server, const net::Token& token) {
    net::DialRequest request{.addresses = {server},
                             .name = "the server",
                             .token = token,
                             .hello = {},
                             .deadline = in_half_a_minute()};
    request.hello.service = net::Service::Predictions;
    auto connected = asio::co_spawn(io_, connect(std::move(request)), asio::use_future);
    io_.run();
    connected.get();
    asio::co_spawn(io_, write(), asio::detached);
    EXPECT_EQ(next().first, MessageKind::welcome);
  }
  ~RawClient() {
    wire_->close();
    io_.restart();
    io_.run();
  }

  void send(MessageKind kind, std::uint64_t count, const Pixels& payload,
            comm::DType dtype = comm::DType::uint8, std::uint64_t sequence = 1) {
    net::FrameHeader header;
    header.operation = static_cast<std::uint8_t>(kind);
    header.sequence = sequence;
    header.count = count;
    header.dtype = static_cast<std::uint8_t>(dtype);
    kept_.push_back(payload);
    wire_->writer.push(header, std::as_bytes(std::span(kept_.back())), {});
  }

  /// Until all is on its way.
  void flush() {
    run_until([&] { return wire_->writer.idle(); });
  }

  /// The first request, of which `sent` bytes follow and no more.
  void promise(std::uint64_t count, std::uint64_t bytes, std::size_t sent) {
    net::FrameHeader header;
    header.operation = static_cast<std::uint8_t>(MessageKind::predict);
    header.count = count;
    header.dtype = static_cast<std::uint8_t>(comm::DType::uint8);
    header.payload_bytes = bytes;
    const auto encoded = net::encode_header(header, keys_.client_to_server);
    asio::write(wire_->socket, asio::buffer(encoded));
    asio::write(wire_->socket, asio::buffer(Pixels(sent)));
  }

  std::pair<MessageKind, Body> next() {
    auto told = asio::co_spawn(io_, read(), asio::use_future);
    run_until([&] { return told.wait_for(milliseconds(0)) == std::future_status::ready; });
    return told.get();
  }

 private:
  template <typename Condition>
  void run_until(Condition condition) {
    io_.restart();
    for (const auto deadline = in_half_a_minute(); !condition() && !deadline.expired();) {
      io_.run_one_for(milliseconds(50));
    }
  }
  asio::awaitable<void> connect(net::DialRequest request) {
    auto dialed = co_await net::dial(std::move(request));
    keys_ = dialed.keys;
    wire_ = std::make_unique<Wire>(std::move(dialed.socket), keys_, Wire::Side::client);
  }
  asio::awaitable<void> write() { co_await wire_->writer.run(); }
  asio::awaitable<std::pair<MessageKind, Body>> read() {
    net::FrameHeader header;
    do {
      header = co_await wire_->next_header();
    } while (header.kind == net::FrameKind::Heartbeat);
    Body body(header.payload_bytes);
    co_await wire_->receive(body);
    co_return std::pair(static_cast<MessageKind>(header.operation), std::move(body));
  }

  asio::io_context io_{1};
  net::SessionKeys keys_;
  std::unique_ptr<Wire> wire_;
  std::list<Pixels> kept_;
};

TEST_F(Serving, BadRequestsAreRefusedAndGoodOnesOfTheSameClientAnswered) {
  serve();
  RawClient raw(server_->endpoint(), options_.token);
  const auto refused = [&](const std::string& text) {
    const auto [kind, body] = raw.next();
    EXPECT_EQ(kind, MessageKind::refused);
    EXPECT_THAT(decode_refused(body).what(), HasSubstr(text));
  };
  raw.send(MessageKind::predict, 2, Pixels(11));
  refused("2 samples of uint8 are 12 bytes, not 11");
  raw.send(MessageKind::predict, 0, {});
  refused("a request has from 1 to");
  raw.send(MessageKind::predict, ~std::uint64_t{0}, Pixels(6));
  refused("a request has from 1 to");
  raw.send(MessageKind::predict, std::uint64_t{1} << 61, Pixels(6), comm::DType::float64);
  refused("a request has from 1 to");
  raw.send(MessageKind::predict, 1, Pixels(48), comm::DType::int64);
  refused("samples must be uint8");
  raw.send(MessageKind::predict, 1, Pixels(6), static_cast<comm::DType>(200));
  refused("samples must be uint8");
  raw.send(MessageKind::predict, 2, Pixels(12, 1));
  const auto [kind, body] = raw.next();
  EXPECT_EQ(kind, MessageKind::predicted);
  EXPECT_EQ(decode_predicted(body, 4).logits, (std::vector<double>{6, -6, 6, -6}));
  EXPECT_EQ(server_->figures().refused, 6u);
}

TEST_F(Serving, WhatMakesNoSenseEndsTheConnectionAlone) {
  serve();
  for (const auto kind : {MessageKind::welcome, MessageKind::predicted, MessageKind::refused,
                          MessageKind::figures, static_cast<MessageKind>(77)}) {
    RawClient raw(server_->endpoint(), options_.token);
    raw.send(kind, 1, Pixels(6));
    const auto [answer, body] = raw.next();
    EXPECT_EQ(answer, MessageKind::refused);
    EXPECT_EQ(decode_refused(body).code(), ErrorCode::CorruptData);
    EXPECT_THROW(raw.next(), std::system_error) << "it has hung up";
  }
  expect_served();
}

TEST_F(Serving, AHugeRequestIsNotEvenRead) {
  serve();
  RawClient raw(server_->endpoint(), options_.token);
  raw.send(MessageKind::predict, 1, Pixels(kMaxRequestBytes + 1));
  const auto [kind, body] = raw.next();
  EXPECT_EQ(kind, MessageKind::refused);
  EXPECT_THAT(decode_refused(body).what(), HasSubstr("at most 16777216 are taken"));
  expect_served();
}

TEST_F(Serving, ClientsThatGoInTheMiddleLeaveNothingBehind) {
  serve({.max_batch = 1, .max_delay = milliseconds(0), .max_waiting = 8});
  model_.held = true;
  for (int i = 0; i < 10; ++i) {
    RawClient whole(server_->endpoint(), options_.token), cut(server_->endpoint(), options_.token);
    whole.send(MessageKind::predict, 4, Pixels(24));
    whole.flush();
    cut.promise(4, 24, 11);
    if (i == 0)
      while (!model_.computing) std::this_thread::sleep_for(milliseconds(1));
    std::this_thread::sleep_for(milliseconds(10));
  }
  while (server_->figures().clients > 0) std::this_thread::sleep_for(milliseconds(1));
  model_.held = false;
  auto own = client();
  const auto pixels = some_pixels(7, 5);
  // Had they kept their places, this one would be turned away.
  EXPECT_EQ(ask(own, pixels).logits, sums_of(pixels));
  EXPECT_EQ(server_->figures().requests, 1u);
  EXPECT_LE(server_->figures().batches, 8u) << "what nobody waits for is not computed";
}

}  // namespace
}  // namespace bimetal::serving
