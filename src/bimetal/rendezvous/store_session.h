#pragma once
// The server's side of the store: the values, who waits for which key, and one session per client.
// Everything happens on the server's thread.

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "bimetal/rendezvous/store_stream.h"

namespace bimetal::rendezvous {

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
