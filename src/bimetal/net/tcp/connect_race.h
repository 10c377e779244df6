#pragma once
// Connects to a server that has several addresses, some of which may be unreachable. The attempts
// start one after the other, a little apart, and the first that succeeds is used (Happy Eyeballs
// version 2, RFC 8305, section 5).

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"

namespace bimetal::net {

/// For coroutines on an io_context that one thread runs. What has not been taken is closed in the
/// end.
class ConnectRace {
 public:
  struct Winner {
    asio::ip::tcp::endpoint address;
    asio::ip::tcp::socket socket;
  };

  /// `addresses`: the one to prefer first.
  ConnectRace(asio::any_io_executor executor, std::vector<asio::ip::tcp::endpoint> addresses);
  ~ConnectRace();
  ConnectRace(const ConnectRace&) = delete;
  ConnectRace& operator=(const ConnectRace&) = delete;

  /// The next connection that stands. Nothing once every attempt has failed or gone unanswered for
  /// some seconds, or at the deadline. Called again where a winner turned out to be of no use.
  asio::awaitable<std::optional<Winner>> next(Deadline deadline);

  /// Notes why a winner was of no use, for troubles().
  void reject(const asio::ip::tcp::endpoint& address, std::string why);

  /// What became of each address: "Connection refused", or with several addresses
  /// "10.0.0.2:29500: Connection refused; [fd00::2]:29500: no answer".
  std::string troubles() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace bimetal::net
