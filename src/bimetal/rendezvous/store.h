#pragma once
// A small key-value store by which the processes of a job find each other before they have a
// group. One process serves it (StoreServer: the launcher, or rank 0); all others are clients.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "bimetal/base/deadline.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"

namespace bimetal::rendezvous {

/// Values are byte strings of at most 16 MiB, keys at most 1 KiB. Implementations are thread-safe.
/// Every call ends by its deadline with Error(Timeout), after which a set or add may or may not
/// have taken effect; a vanished server is Error(PeerLost).
class Store {
 public:
  virtual ~Store() = default;

  /// The key has this value from now on.
  virtual void set(std::string_view key, std::string_view value, Deadline deadline) = 0;

  /// Waits until the key exists.
  virtual std::string get(std::string_view key, Deadline deadline) = 0;

  /// The value now, or nothing.
  virtual std::optional<std::string> try_get(std::string_view key, Deadline deadline) = 0;

  /// Adds to a counter that starts at 0 and returns the new value.
  virtual std::int64_t add(std::string_view key, std::int64_t delta, Deadline deadline) = 0;

  /// This side's address on the path to the server: an address that others can reach it by if they
  /// reach the server by the same network. Empty where that makes no sense.
  virtual std::string local_address() const = 0;
};

/// Serves a store until destroyed. Binding beyond loopback needs a token (Error(Unauthorized)); a
/// port in use is Error(System) that names the port and says what to try. Clients that want another
/// kind of connection (encrypted or plain) are refused.
class StoreServer {
 public:
  /// `fault_key`: where the failure (noted_failure) is noted that a client has another token;
  /// empty: nowhere, and others may come.
  StoreServer(const net::Endpoint& listen, const net::Token& token,
              net::Encryption encryption = net::encryption_from_environment(),
              const std::string& fault_key = {});
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  /// The address bound, with the real port where 0 was asked for.
  net::Endpoint endpoint() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Connects, retrying until the deadline (the server may start later). Errors: Timeout naming the
/// address and what to check; Unauthorized at once for a wrong token; ProtocolMismatch at once for
/// a server of another version or a stranger's service on that port; InvalidArgument at once where
/// one side wants encryption and the other does not.
std::unique_ptr<Store> connect_store(
    const net::Endpoint& server, const net::Token& token, Deadline deadline,
    net::Encryption encryption = net::encryption_from_environment());

/// The same without a second try: Error(PeerLost) at once where nobody listens there.
std::unique_ptr<Store> connect_store_at_once(const net::Endpoint& server, const net::Token& token,
                                             Deadline deadline);

// A store of another program's that can tell its entries, but should not be asked to wait.

/// Waits by asking in turns: another store's own wait may hold its connection, and other threads
/// with it. The derived class defines set, try_get, add and local_address.
class PolledStore : public Store {
 public:
  /// `name` stands for the store in messages.
  explicit PolledStore(std::string name) : name_(std::move(name)) {}

  std::string get(std::string_view key, Deadline deadline) final;

 protected:
  const std::string& name() const noexcept { return name_; }  ///< as the constructor got it

 private:
  std::string name_;
};

}  // namespace bimetal::rendezvous
