#pragma once
// Sockets as Bimetal wants them: not inherited by child processes (a child that holds a connection
// open would hide its owner's death), without Nagle's delay, and silent about SIGPIPE.

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

/// Hands each connection to `take`, until `acceptor` is closed. What cannot be taken is logged, and
/// tried again a little later. `acceptor` must live until the coroutine has ended.
asio::awaitable<void> accept_each(tcp::acceptor& acceptor, std::function<void(tcp::socket)> take);

/// For connections that carry frames. `peer_timeout`: how long sent data may stay unacknowledged,
/// on systems whose kernel watches that by itself.
void tune_for_frames(tcp::socket& socket, std::chrono::milliseconds peer_timeout);

/// Lets the system hold little that it has not sent: for connections to other hosts on which urgent
/// frames pass others. What it holds, nothing can pass any more.
void queue_little(tcp::socket& socket);

/// Whether a connection's other end is on this machine: at loopback, or at this end's own address.
bool ends_on_one_host(const tcp::socket& socket);

/// "10.0.0.2:29500", or "an unknown address" where the connection has gone already.
std::string describe_remote(const tcp::socket& socket);

/// The same for this side's end, with the interface that has the address: "10.0.0.1:4711 (eth0)".
std::string describe_local(const tcp::socket& socket);

Endpoint to_endpoint(const tcp::endpoint& address);

}  // namespace bimetal::net
