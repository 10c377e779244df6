#pragma once
// Distinguishes a path on which nothing is acknowledged any more (cable pulled, host off) from a
// peer that is alive but stopped or slow to read. The latter's kernel still answers.

#include <asio/ip/tcp.hpp>
#include <chrono>

namespace bimetal::net {

class PathWatch {
 public:
  explicit PathWatch(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  /// Has the kernel try again so often that a path which is back in time is found to be.
  void prepare(asio::ip::tcp::socket& socket);

  /// To be asked several times within `timeout`, while something is sent at least as often. For how
  /// long the peer's kernel has not acknowledged sent data, although it was sent again; 0 where
  /// all is well. Always 0 on systems whose kernel cuts such connections by itself (see
  /// tune_for_frames).
  std::chrono::milliseconds unanswered_for(asio::ip::tcp::socket& socket);

  /// To be asked as often, and before anything is sent, while nothing is read from the socket,
  /// which would tell: true when the peer's end was closed before all that it had to send has come.
  /// Of a peer that has sent all, reading finds what it sent, and then its end. Always false on
  /// systems that do not tell the two apart; there, too, reading does.
  bool closed_unread(asio::ip::tcp::socket& socket);

 private:
  [[maybe_unused]] std::chrono::milliseconds timeout_;   ///< not asked where the kernel watches
  std::chrono::steady_clock::time_point quiet_since_{};  ///< last time that nothing was in flight
  [[maybe_unused]] bool has_sent_all_ = false;  ///< the peer: the end of its stream is here
};

}  // namespace bimetal::net
