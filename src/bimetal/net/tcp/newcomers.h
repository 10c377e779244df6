#pragma once
// Connections that have not authenticated yet. Their number is limited, so that a flood of
// strangers costs bounded memory and descriptors. A flood pushes out its own connections: a
// connection keeps its place if there are few from its address.

#include <asio/ip/tcp.hpp>
#include <cstddef>
#include <list>
#include <memory>
#include <string>

namespace bimetal::net {

/// For one thread.
class Newcomers {
 public:
  using Socket = std::shared_ptr<asio::ip::tcp::socket>;

  explicit Newcomers(std::size_t room) : room_(room) {}

  /// Takes one in. Without room the oldest of the address that has the most is closed first. An
  /// IPv6 network of 64 bits counts as one address: a single machine may have all of it.
  Socket admit(asio::ip::tcp::socket socket);

  /// It has proved what it had to, or has ended.
  void remove(const Socket& socket);

  void close_all();

 private:
  struct Newcomer {
    std::string from;
    Socket socket;
  };
  void drop_one_of_the_most();

  const std::size_t room_;
  std::list<Newcomer> here_;  ///< the oldest first
};

}  // namespace bimetal::net
