#pragma once
// The store's messages (store_message.h) on a connection: read one by one, written in order by one
// coroutine. Used on the thread that runs the connection's io_context.

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "bimetal/net/link/session.h"
#include "bimetal/rendezvous/store_message.h"

namespace bimetal::rendezvous {

/// Reads one message. Throws Error(CorruptData) for bytes that fail the checks (before anything is
/// allocated by their lengths), std::system_error when the connection ends.
asio::awaitable<StoreMessage> read_store_message(net::ByteReader& reader, net::Seal& seal);

/// Messages waiting to go out.
class Outbox {
 public:
  Outbox(asio::ip::tcp::socket& socket, const net::Direction& direction);

  void push(StoreMessage message);

  /// Writes until close() or a failed write, whose error it returns.
  asio::awaitable<std::error_code> run();

  /// Returns once at most `limit` bytes of values are waiting, or after close().
  asio::awaitable<void> wait_below(std::size_t limit);

  void close();

 private:
  net::ByteWriter writer_;
  net::Seal seal_;
  std::deque<StoreMessage> messages_;
  std::size_t bytes_ = 0;
  bool closed_ = false;
  asio::steady_timer filled_;
  asio::steady_timer drained_;
};

// The server's side of the store: the values, which client waits for which key, and one session per
// client. Everything happens on the server's thread.

class StoreSession;

/// The keys and values, and the Gets that wait for keys to come.
class StoreTable {
 public:
  void set(const std::string& key, std::shared_ptr<const std::string> value);
  /// nullptr if there is no such key.
  std::shared_ptr<const std::string> find(const std::string& key) const;
  /// Adds to the counter under `key`; false if that holds something else.
  bool add(const std::string& key, std::int64_t delta, std::int64_t& sum);
  void await(const std::string& key, std::weak_ptr<StoreSession> session, std::uint64_t request);

 private:
  struct Waiter {
    std::weak_ptr<StoreSession> session;
    std::uint64_t request;
  };
  std::unordered_map<std::string, std::shared_ptr<const std::string>> values_;
  std::unordered_map<std::string, std::vector<Waiter>> waiters_;
};

/// Serves one client until it goes or misbehaves; either ends this session alone.
class StoreSession final : public net::Session {
 public:
  StoreSession(asio::ip::tcp::socket socket, const net::SessionKeys& keys, StoreTable& table);

  /// The key that a Get of this session waits for has come.
  void deliver(std::uint64_t request, std::shared_ptr<const std::string> value);
  bool waits_for(std::uint64_t request) const { return is_open() && waiting_.contains(request); }

 private:
  asio::awaitable<void> read_messages() override;
  asio::awaitable<std::error_code> send_messages() override { return outbox_.run(); }
  void drop_unsent(const Error&) override { outbox_.close(); }
  void on_ended(const Error& why) override;

  void handle(StoreMessage request);
  void get(const StoreMessage& request, StoreMessage reply);

  StoreTable& table_;
  Outbox outbox_;
  std::uint64_t last_request_ = 0;
  std::map<std::uint64_t, std::string> waiting_;  ///< request number → key
};

}  // namespace bimetal::rendezvous
