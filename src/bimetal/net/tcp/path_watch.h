#pragma once
// Tells a path on which nothing is acknowledged any more (cable pulled, host off) from a peer that
// is alive but stopped or slow to read: the latter's kernel still answers.

#include <asio/ip/tcp.hpp>
#include <chrono>

namespace bimetal::net {

class PathWatch {
 public:
  explicit PathWatch(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  /// To be asked several times within `timeout`, while something is sent at least as often. True
  /// when the peer's kernel has not acknowledged sent data for that long. Always false on systems
  /// whose kernel cuts such connections by itself (see tune_for_frames).
  bool unanswered(asio::ip::tcp::socket& socket);

 private:
  [[maybe_unused]] std::chrono::milliseconds timeout_;   ///< not asked where the kernel watches
  std::chrono::steady_clock::time_point quiet_since_{};  ///< last time that nothing was in flight
};

}  // namespace bimetal::net
