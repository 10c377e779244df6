#pragma once
// A bad network between two processes: it passes bytes on between its clients and one server, and
// delays, alters, holds or cuts them when it is told to. POSIX.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "bimetal/net/endpoint.h"

namespace bimetal::testing {

/// Thread-safe. A thread of its own passes the bytes on.
class TcpProxy {
 public:
  enum class Direction { to_server, to_client };

  /// Called with each piece of a stream before it is passed on, and where it begins in that stream.
  using Filter = std::function<void(Direction, std::uint64_t offset, std::span<char> bytes)>;

  explicit TcpProxy(net::Endpoint server);
  ~TcpProxy();
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  /// The address to which clients connect instead.
  const net::Endpoint& endpoint() const noexcept { return endpoint_; }

  void filter(Filter filter);

  /// From now on flips a bit in the last byte of `text` wherever that passes in one piece.
  void alter(std::string text);

  /// Each piece waits that long.
  void delay(std::chrono::milliseconds delay) { delay_ = delay; }

  /// Nothing is passed on any more, while every connection stays as it is.
  void hold(bool on) { held_ = on; }

  enum class Ending {
    reset,      ///< both sides see a reset connection
    close,      ///< both sides see the end of the stream
    half_open,  ///< the client alone sees the end; the server's side stays, and stays silent
  };
  void cut(Ending ending);

  /// Bytes passed on so far, of all connections together.
  std::uint64_t passed(Direction direction) const;

 private:
  struct Link {
    int client;
    int server;
    std::uint64_t to_server = 0;
    std::uint64_t to_client = 0;
  };

  void run();
  void accept_client();
  bool pass(int from, int to, Direction direction, std::uint64_t& offset);
  static void close_link(Link& link);

  const net::Endpoint server_;
  net::Endpoint endpoint_;
  int listener_;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> held_ = false;
  std::atomic<std::chrono::milliseconds> delay_{std::chrono::milliseconds(0)};
  std::atomic<std::uint64_t> to_server_ = 0;
  std::atomic<std::uint64_t> to_client_ = 0;
  mutable std::mutex mutex_;  ///< guards what follows
  Filter filter_;
  std::list<Link> links_;
  std::thread thread_;
};

}  // namespace bimetal::testing
