#pragma once
// The differences between operating systems about sockets, besides open_socket and accept_now of
// sockets.h. One file per system defines all five.

#include <asio/ip/tcp.hpp>
#include <chrono>

namespace bimetal::net {

/// Opens a socket that is not inherited, and whose port will be ours alone, also where a former
/// owner's connections still linger. Throws std::system_error.
void open_to_listen(asio::ip::tcp::acceptor& acceptor, const asio::ip::tcp& protocol);

/// The system's part of tune_for_frames. Errors are ignored: the first read tells.
void tune_for_system(asio::ip::tcp::socket& socket, std::chrono::milliseconds peer_timeout);

/// The system's part of queue_little. Errors are ignored: it only costs time.
void limit_unsent(asio::ip::tcp::socket& socket, int bytes);

}  // namespace bimetal::net
