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

#include "bimetal/net/handshake.h"
#include "bimetal/net/tcp/byte_stream.h"
#include "bimetal/rendezvous/outbox.h"
#include "bimetal/rendezvous/store_message.h"

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
class StoreSession : public std::enable_shared_from_this<StoreSession> {
 public:
  StoreSession(asio::ip::tcp::socket socket, const net::SessionKeys& keys, StoreTable& table);

  void start();
  void close();

  /// The key that a Get of this session waits for has come.
  void deliver(std::uint64_t request, std::shared_ptr<const std::string> value);
  bool waits_for(std::uint64_t request) const { return waiting_.contains(request); }

 private:
  asio::awaitable<void> serve(std::shared_ptr<StoreSession> self);
  asio::awaitable<void> write(std::shared_ptr<StoreSession> self);
  void handle(StoreMessage request);
  void get(const StoreMessage& request, StoreMessage reply);

  asio::ip::tcp::socket socket_;
  net::Seal incoming_;
  StoreTable& table_;
  net::ByteReader reader_;
  Outbox outbox_;
  std::string remote_;
  std::uint64_t last_request_ = 0;
  std::map<std::uint64_t, std::string> waiting_;  ///< request number → key
  bool closed_ = false;
};

}  // namespace bimetal::rendezvous
