#include "bimetal/rendezvous/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "support/errors.h"
#include "support/tcp_proxy.h"
#include "unit/net/raw_socket.h"
#include "unit/rendezvous/soon.h"

namespace bimetal::rendezvous {
namespace {

using namespace std::chrono_literals;
using net::testing::RawServer;
using net::testing::RawSocket;
using ::testing::HasSubstr;

const net::Token kToken = net::Token::from_text("the token of this job");

template <typename Call>
Error failure_of(Call call) {
  return error_of(call).value_or(Error(ErrorCode::Internal, "no error"));
}

class StoreOfTwo : public ::testing::Test {
 protected:
  std::unique_ptr<Store> connect() { return connect_store(server_->endpoint(), kToken, soon()); }

  std::unique_ptr<StoreServer> server_ =
      std::make_unique<StoreServer>(net::Endpoint{"127.0.0.1", 0}, kToken);
  std::unique_ptr<Store> a_ = connect();
  std::unique_ptr<Store> b_ = connect();
};

// Entries in the store decide who trains what: they may get lost on the way, but not changed.
TEST_F(StoreOfTwo, WhatIsAlteredOnTheWayIsNeitherStoredNorRead) {
  std::string warning;
  std::mutex mutex;
  set_log_sink(
      [&](LogLevel, std::string_view text) {
        std::lock_guard lock(mutex);
        warning = text;
      },
      LogLevel::warning);
  bimetal::testing::TcpProxy proxy(server_->endpoint());
  const auto far = connect_store(proxy.endpoint(), kToken, soon());
  far->set("rank/3", "10.0.0.3:4711", soon());
  proxy.alter("10.0.0.4:471");
  const Error unanswered = failure_of([&] { far->set("rank/4", "10.0.0.4:4711", soon()); });
  EXPECT_EQ(unanswered.code(), ErrorCode::PeerLost) << unanswered.what();
  EXPECT_EQ(a_->try_get("rank/4", soon()), std::nullopt);
  set_log_sink({});
  std::unique_lock lock(mutex);
  EXPECT_THAT(warning, HasSubstr("store: closed the connection from 127.0.0.1"));

  const auto again = connect_store(proxy.endpoint(), kToken, soon());
  a_->set("rank/4", "10.0.0.4:4711", soon());
  const Error altered = failure_of([&] { again->get("rank/4", soon()); });
  EXPECT_EQ(altered.code(), ErrorCode::CorruptData) << altered.what();
  EXPECT_THAT(altered.what(), HasSubstr("the rendezvous store at 127.0.0.1"));
}

TEST_F(StoreOfTwo, KeysAndValuesAreBytes) {
  const std::string key("\0\xff key", 6);
  std::string value(1000, '\0');
  for (std::size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i);
  a_->set(key, value, soon());
  a_->set("", "", soon());
  EXPECT_EQ(b_->get(key, soon()), value);
  EXPECT_EQ(b_->get("", soon()), "");
}

TEST_F(StoreOfTwo, WaitingDoesNotBlockTheSameClient) {
  auto waiting = std::async(std::launch::async, [&] { return a_->get("late", soon()); });
  std::this_thread::sleep_for(50ms);
  a_->set("late", "from the same client", soon());
  EXPECT_EQ(waiting.get(), "from the same client");
}

TEST_F(StoreOfTwo, GetEndsAtItsDeadline) {
  const Error error = failure_of([&] { a_->get("never set", Deadline::after(100ms)); });
  EXPECT_EQ(error.code(), ErrorCode::Timeout);
  EXPECT_THAT(error.what(), HasSubstr("never set"));
  EXPECT_THAT(error.what(), HasSubstr(to_string(server_->endpoint())));
  b_->set("never set", "after all", soon());
  EXPECT_EQ(a_->get("never set", soon()), "after all");
}

TEST_F(StoreOfTwo, CountersAddUpAcrossThreads) {
  constexpr int kEach = 100;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) (t % 2 == 0 ? a_ : b_)->add("n", t + 1, soon());
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(a_->add("n", -1, soon()), (1 + 2 + 3 + 4) * kEach - 1);
  EXPECT_EQ(b_->get("n", soon()), std::to_string((1 + 2 + 3 + 4) * kEach - 1));
}

TEST_F(StoreOfTwo, CounterOverSomethingElseIsAnError) {
  for (const char* text : {"text", "12a", "", " 1"}) {
    a_->set("text", text, soon());
    EXPECT_EQ(failure_of([&] { a_->add("text", 1, soon()); }).code(), ErrorCode::InvalidArgument);
  }
  a_->set("text", "41", soon());
  EXPECT_EQ(a_->add("text", 1, soon()), 42);
}

TEST_F(StoreOfTwo, LimitsHold) {
  const std::string longest_key(1024, 'k');
  const std::string largest_value(16 << 20, 'v');
  a_->set(longest_key, largest_value, soon());
  EXPECT_TRUE(b_->get(longest_key, soon()) == largest_value);
  const auto too_much = [&](const std::string& key, const std::string& value) {
    return failure_of([&] { a_->set(key, value, soon()); }).code();
  };
  EXPECT_EQ(too_much(longest_key + 'k', ""), ErrorCode::InvalidArgument);
  EXPECT_EQ(too_much("k", largest_value + 'v'), ErrorCode::InvalidArgument);
  EXPECT_EQ(b_->try_get("k", soon()), std::nullopt);
}

TEST_F(StoreOfTwo, VanishedServerIsPeerLostForThoseWhoWaitAndAfterwards) {
  auto waiting =
      std::async(std::launch::async, [&] { return failure_of([&] { a_->get("late", soon()); }); });
  std::this_thread::sleep_for(50ms);
  server_.reset();
  const Error error = waiting.get();
  EXPECT_EQ(error.code(), ErrorCode::PeerLost);
  EXPECT_THAT(error.what(), HasSubstr("the rendezvous store at 127.0.0.1:"));
  EXPECT_EQ(failure_of([&] { a_->set("k", "v", soon()); }).code(), ErrorCode::PeerLost);
}

TEST_F(StoreOfTwo, ClientThatLeavesHurtsNobody) {
  auto waiting = std::async(std::launch::async, [&] {
    const auto brief = connect();
    return failure_of([&] { brief->get("late", Deadline::after(50ms)); }).code();
  });
  EXPECT_EQ(waiting.get(), ErrorCode::Timeout);
  a_.reset();
  b_->set("late", "value", soon());
  EXPECT_EQ(b_->get("late", soon()), "value");
}

TEST_F(StoreOfTwo, StrangersHurtNobody) {
  std::list<RawSocket> strangers;
  for (int i = 0; i < 200; ++i) strangers.push_back(RawSocket::connect(server_->endpoint()));
  RawSocket web = RawSocket::connect(server_->endpoint());
  web.write("GET / HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(web.hangs_up());
  EXPECT_EQ(connect()->add("n", 1, soon()), 1);
  EXPECT_EQ(a_->add("n", 1, soon()), 2);
}

TEST_F(StoreOfTwo, WrongTokenIsRefusedAtOnce) {
  for (const auto& wrong : {net::Token::from_text("not the token of this job"), net::Token()}) {
    const Error error = failure_of([&] { connect_store(server_->endpoint(), wrong, soon()); });
    EXPECT_EQ(error.code(), ErrorCode::Unauthorized);
    EXPECT_THAT(error.what(), HasSubstr("token was refused by the rendezvous store at 127.0.0.1:"));
  }
}

TEST_F(StoreOfTwo, PortInUseIsNamed) {
  const Error error = failure_of([&] { StoreServer second(server_->endpoint(), kToken); });
  EXPECT_EQ(error.code(), ErrorCode::System);
  const std::string port = std::to_string(server_->endpoint().port);
  EXPECT_THAT(error.what(), HasSubstr("port " + port + " on 127.0.0.1 is in use"));
  EXPECT_THAT(error.what(), HasSubstr("--listen or MASTER_PORT"));
}

TEST(StoreServer, OneSideEncryptedAndTheOtherNotIsToldAtOnce) {
  for (const auto ours : {net::Encryption::off, net::Encryption::on}) {
    const auto other = ours == net::Encryption::on ? net::Encryption::off : net::Encryption::on;
    StoreServer server({"127.0.0.1", 0}, kToken, ours);
    const Error error =
        failure_of([&] { connect_store(server.endpoint(), kToken, soon(), other); });
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("BIMETAL_ENCRYPTION"));
    connect_store(server.endpoint(), kToken, soon(), ours)->add("n", 1, soon());
  }
}

TEST(StoreServer, PortIsFreeAgainAtOnce) {
  net::Endpoint endpoint{"127.0.0.1", 0};
  for (int i = 0; i < 3; ++i) {
    StoreServer server(endpoint, kToken);
    endpoint = server.endpoint();
    connect_store(endpoint, kToken, soon())->set("k", "v", soon());
  }
}

TEST(StoreServer, ListensBeyondLoopbackWithATokenOnly) {
  EXPECT_EQ(failure_of([] {
              StoreServer server({"0.0.0.0", 0}, net::Token());
            }).code(),
            ErrorCode::Unauthorized);
  const StoreServer server({"0.0.0.0", 0}, kToken);
  const net::Endpoint here{"127.0.0.1", server.endpoint().port};
  EXPECT_EQ(connect_store(here, kToken, soon())->add("n", 1, soon()), 1);
}

TEST(StoreServer, AnAddressOfAnotherMachineIsRefused) {
  const Error error = failure_of([] { StoreServer server({"192.0.2.1", 0}, kToken); });
  EXPECT_EQ(error.code(), ErrorCode::System);
  EXPECT_THAT(error.what(), HasSubstr("192.0.2.1 is no address of this machine"));
}

TEST(ConnectStore, WaitsForAServerThatStartsLater) {
  const net::Endpoint endpoint = StoreServer({"127.0.0.1", 0}, kToken).endpoint();
  auto connecting =
      std::async(std::launch::async, [&] { return connect_store(endpoint, kToken, soon()); });
  std::this_thread::sleep_for(200ms);
  const StoreServer server(endpoint, kToken);
  EXPECT_EQ(connecting.get()->add("n", 1, soon()), 1);
}

TEST(ConnectStore, EndsAtItsDeadlineWhereNobodyAnswers) {
  const net::Endpoint endpoint = StoreServer({"127.0.0.1", 0}, kToken).endpoint();
  const Error error = failure_of([&] { connect_store(endpoint, kToken, Deadline::after(200ms)); });
  EXPECT_EQ(error.code(), ErrorCode::Timeout);
  EXPECT_THAT(error.what(), HasSubstr("store at " + to_string(endpoint)));
  EXPECT_THAT(error.what(), HasSubstr("refused"));
  EXPECT_THAT(error.what(), HasSubstr("firewall"));
}

TEST(ConnectStore, EndsAtItsDeadlineWhereTheServerIsSilent) {
  const RawServer silent;
  EXPECT_EQ(
      failure_of([&] { connect_store(silent.endpoint(), kToken, Deadline::after(200ms)); }).code(),
      ErrorCode::Timeout);
}

TEST(ConnectStore, StrangersServiceIsTold) {
  RawServer web;
  auto playing = std::async(std::launch::async, [&] {
    RawSocket client = web.accept();
    client.write("SSH-2.0-something\r\n");
    client.hangs_up();
  });
  const Error error = failure_of([&] { connect_store(web.endpoint(), kToken, soon()); });
  EXPECT_EQ(error.code(), ErrorCode::ProtocolMismatch);
  EXPECT_THAT(error.what(), HasSubstr("is not Bimetal"));
}

TEST(ConnectStore, NeedsATokenBeyondLoopback) {
  EXPECT_EQ(failure_of([] {
              connect_store({"192.0.2.1", 1}, net::Token(), soon());
            }).code(),
            ErrorCode::Unauthorized);
}

TEST(ConnectStore, UnknownNameEndsAtItsDeadline) {
  const Error error = failure_of([] {
    connect_store({"no-such-host.invalid", 1}, kToken, Deadline::after(300ms));
  });
  EXPECT_EQ(error.code(), ErrorCode::Timeout);
  EXPECT_THAT(error.what(), HasSubstr("no-such-host.invalid:1"));
}

}  // namespace
}  // namespace bimetal::rendezvous
