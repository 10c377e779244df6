#pragma once
// Sockets as Bimetal wants them: not inherited by child processes (a child that holds a connection
// open would hide its owner's death), without Nagle's delay, and silent about SIGPIPE.
//
// The differences between operating systems about sockets, besides open_socket and accept_now.
// One file per system defines all five.
//
// Distinguishes a path on which nothing is acknowledged any more (cable pulled, host off) from a
// peer that is alive but stopped or slow to read. The latter's kernel still answers.

#include <asio/awaitable.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <chrono>
#include <functional>
#include <string>

#include "bimetal/net/endpoint.h"

namespace bimetal::net {

using asio::ip::tcp;

/// Throws std::system_error.
tcp::socket open_socket(const asio::any_io_executor& executor, const tcp& protocol);

/// Listens on `address`. Errors: System; for a port in use it names the port and says what to try.
tcp::acceptor open_acceptor(const asio::any_io_executor& executor, const tcp::endpoint& address);

/// Waits for a connection and takes it; `error` is set where it has gone by then, or cannot be
/// taken, or `acceptor` was closed.
asio::awaitable<tcp::socket> accept_next(tcp::acceptor& acceptor, std::error_code& error);

/// Hands each connection to `take`, until `acceptor` is closed. A failure to accept is logged, and
/// the next try comes a little later. `acceptor` must live until the coroutine has ended.
asio::awaitable<void> accept_each(tcp::acceptor& acceptor, std::function<void(tcp::socket)> take);

/// For connections that carry frames. `peer_timeout`: how long sent data may stay unacknowledged,
/// on systems whose kernel watches that by itself.
void tune_for_frames(tcp::socket& socket, std::chrono::milliseconds peer_timeout);

/// Lets the system hold little that it has not sent: for connections to other hosts on which urgent
/// frames pass others. No frame can pass data that the system already holds.
void queue_little(tcp::socket& socket);

/// Whether a connection's other end is on this machine: at loopback, or at this end's own address.
bool ends_on_one_host(const tcp::socket& socket);

/// "10.0.0.2:29500", or "an unknown address" where the connection has gone already.
std::string describe_remote(const tcp::socket& socket);

/// The same for this side's end, with the interface that has the address: "10.0.0.1:4711 (eth0)".
std::string describe_local(const tcp::socket& socket);

Endpoint to_endpoint(const tcp::endpoint& address);

/// Opens a socket that is not inherited, and whose port will be ours alone, also where a former
/// owner's connections still linger. Throws std::system_error.
void open_to_listen(asio::ip::tcp::acceptor& acceptor, const asio::ip::tcp& protocol);

/// The system's part of tune_for_frames. Errors are ignored: the first read tells.
void tune_for_system(asio::ip::tcp::socket& socket, std::chrono::milliseconds peer_timeout);

/// The system's part of queue_little. Errors are ignored: it only costs time.
void limit_unsent(asio::ip::tcp::socket& socket, int bytes);

class PathWatch {
 public:
  explicit PathWatch(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  /// Has the kernel try again so often that a path which is back in time is found to be.
  void prepare(asio::ip::tcp::socket& socket);

  /// To be asked several times within `timeout`, while something is sent at least as often. Returns
  /// for how long the peer's kernel has not acknowledged sent data, although it was sent again; 0
  /// if all is well. Always 0 on systems whose kernel cuts such connections by itself (see
  /// tune_for_frames).
  std::chrono::milliseconds unanswered_for(asio::ip::tcp::socket& socket);

  /// True when the peer's end was closed before all that it had to send has come. Ask it as often,
  /// and before each send, while nothing is read from the socket: reading would tell. If the peer
  /// has sent all, reading finds that, and then its end. Always false on systems that do not tell
  /// the two apart; there, too, reading does.
  bool closed_unread(asio::ip::tcp::socket& socket);

 private:
  [[maybe_unused]] std::chrono::milliseconds timeout_;   ///< not asked where the kernel watches
  std::chrono::steady_clock::time_point quiet_since_{};  ///< last time that nothing was in flight
  [[maybe_unused]] bool has_sent_all_ = false;  ///< the peer: the end of its stream is here
};

}  // namespace bimetal::net
