// A client that knows the token and then breaks the rules: it is cut off, and nobody else notices.

#include <gtest/gtest.h>

#include <asio/co_spawn.hpp>
#include <asio/io_context.hpp>
#include <asio/read.hpp>
#include <asio/write.hpp>
#include <optional>

#include "bimetal/net/tcp/dial.h"
#include "bimetal/rendezvous/store.h"
#include "bimetal/rendezvous/store_message.h"
#include "bimetal/rendezvous/store_server.h"
#include "unit/rendezvous/soon.h"

namespace bimetal::rendezvous {
namespace {

using namespace std::chrono_literals;

class RuleBreaker : public ::testing::Test {
 protected:
  RuleBreaker() : server_({"127.0.0.1", 0}, net::Token(), net::Encryption::off) { connect(); }

  void connect() {
    run([this]() -> asio::awaitable<void> {
      net::DialRequest request{{server_.endpoint()}, "store", net::Token(), {}, soon()};
      request.hello.service = net::Service::Store;
      client_.emplace(co_await net::dial(std::move(request)));
    });
    outgoing_.emplace(client_->keys.client_to_server);
    incoming_.emplace(client_->keys.server_to_client);
  }

  template <typename Coroutine>
  void run(Coroutine coroutine) {
    std::exception_ptr failure;
    asio::co_spawn(io_, std::move(coroutine), [&](std::exception_ptr error) { failure = error; });
    io_.restart();
    io_.run();
    if (failure) std::rethrow_exception(failure);
  }

  StoreHeader header(const StoreMessage& message) {
    return encode_store_header(message, *outgoing_);
  }
  void write(const void* data, std::size_t size) {
    std::error_code ignored;
    asio::write(client_->socket, asio::buffer(data, size), ignored);
  }
  void write(const StoreMessage& message) {
    const StoreHeader bytes = header(message);
    write(bytes.data(), bytes.size());
    write(message.key.data(), message.key.size());
    write(message.value->data(), message.value->size());
  }
  StoreMessage reply() {
    StoreMessage message;
    run([&]() -> asio::awaitable<void> {
      net::ByteReader reader(client_->socket);
      message = co_await read_store_message(reader, *incoming_);
    });
    return message;
  }

  void expect_cut_off() {
    EXPECT_THROW(reply(), std::system_error);
    EXPECT_EQ(connect_store(server_.endpoint(), net::Token(), soon(), net::Encryption::off)
                  ->add("well", 1, soon()),
              1);
  }

  static StoreMessage set(std::uint64_t request) {
    StoreMessage message;
    message.call = StoreCall::Set;
    message.request = request;
    message.key = "key";
    message.value = std::make_shared<const std::string>("value");
    return message;
  }

  StoreServer server_;
  asio::io_context io_;
  std::optional<net::DialedConnection> client_;
  std::optional<net::Seal> outgoing_, incoming_;
};

TEST_F(RuleBreaker, IsServedWhileItKeepsThem) {
  write(set(1));
  EXPECT_EQ(reply().request, 1u);
  write(set(5));
  EXPECT_EQ(reply().request, 5u);
}

TEST_F(RuleBreaker, EveryDamagedHeaderByteIsNoticed) {
  for (std::size_t i = 0; i < kStoreHeaderBytes; ++i) {
    connect();
    StoreHeader bad = header(set(1));
    bad[i] ^= std::byte{0x10};
    write(bad.data(), bad.size());
    write("keyvalue", 8);
    EXPECT_THROW(reply(), std::system_error) << "byte " << i;
  }
}

TEST_F(RuleBreaker, DamagedValue) {
  const StoreMessage message = set(1);
  const StoreHeader bytes = header(message);
  write(bytes.data(), bytes.size());
  write("keyvalUe", 8);
  expect_cut_off();
}

TEST_F(RuleBreaker, TooLongAKey) {
  StoreMessage message = set(1);
  message.key.assign(kMaxKeyBytes + 1, 'k');
  write(message);
  expect_cut_off();
}

TEST_F(RuleBreaker, RequestNumberUsedTwice) {
  write(set(3));
  reply();
  write(set(3));
  expect_cut_off();
}

TEST_F(RuleBreaker, ReplayedCancel) {
  StoreMessage cancel;
  cancel.call = StoreCall::Cancel;
  cancel.request = 1;
  const StoreHeader bytes = header(cancel);
  write(bytes.data(), bytes.size());
  write(bytes.data(), bytes.size());
  expect_cut_off();
}

TEST_F(RuleBreaker, OneLeftOut) {
  header(set(1));  // never sent
  write(set(2));
  expect_cut_off();
}

TEST_F(RuleBreaker, UnknownRequest) {
  StoreMessage message = set(1);
  message.call = static_cast<StoreCall>(77);
  write(message);
  expect_cut_off();
}

TEST_F(RuleBreaker, TooManyWaits) {
  constexpr std::uint64_t kMany = 5000;
  for (std::uint64_t request = 1; request <= kMany; ++request) {
    StoreMessage message;
    message.call = StoreCall::Get;
    message.request = request;
    message.key = "never";
    write(message);
  }
  EXPECT_EQ(reply().status, StoreStatus::TooMany);
}

}  // namespace
}  // namespace bimetal::rendezvous
