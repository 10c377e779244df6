#include "unit/net/raw_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "bimetal/base/error.h"

namespace bimetal::net::testing {
namespace {

constexpr timeval kTimeLimit{20, 0};

int checked(int result, const char* what) {
  if (result < 0) throw system_error(what, errno);
  return result;
}

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

int open_socket() {
  return checked(::socket(AF_INET, SOCK_STREAM, 0), "socket");
}

}  // namespace

RawSocket::RawSocket(int fd) : fd_(fd) {
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &kTimeLimit, sizeof(kTimeLimit));
  ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &kTimeLimit, sizeof(kTimeLimit));
}

RawSocket::~RawSocket() {
  if (fd_ >= 0) ::close(fd_);
}

RawSocket::RawSocket(RawSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

RawSocket RawSocket::connect(const Endpoint& server, const char* from) {
  RawSocket socket(open_socket());
  sockaddr_in source = loopback(0);
  source.sin_addr.s_addr = inet_addr(from);
  checked(::bind(socket.fd_, reinterpret_cast<const sockaddr*>(&source), sizeof(source)), "bind");
  const sockaddr_in address = loopback(server.port);
  checked(::connect(socket.fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)),
          "connect");
  return socket;
}

bool RawSocket::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  return true;
}

bool RawSocket::write(std::string_view text) {
  return write(std::as_bytes(std::span(text.data(), text.size())));
}

std::vector<std::byte> RawSocket::read(std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::size_t have = 0;
  while (have < size) {
    const auto got = ::recv(fd_, bytes.data() + have, size - have, 0);
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
  }
  bytes.resize(have);
  return bytes;
}

bool RawSocket::hangs_up() {
  std::byte skipped[256];
  for (;;) {
    const auto got = ::recv(fd_, skipped, sizeof(skipped), 0);
    if (got == 0) return true;
    if (got < 0) return errno == ECONNRESET;
  }
}

void RawSocket::shut_down_writing() {
  ::shutdown(fd_, SHUT_WR);
}

RawServer::RawServer() : fd_(open_socket()) {
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &kTimeLimit, sizeof(kTimeLimit));
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof(address);
  checked(::bind(fd_, reinterpret_cast<const sockaddr*>(&address), size), "bind");
  checked(::listen(fd_, 16), "listen");
  checked(::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), "getsockname");
  endpoint_ = {"127.0.0.1", ntohs(address.sin_port)};
}

RawServer::~RawServer() {
  ::close(fd_);
}

RawSocket RawServer::accept() {
  return RawSocket(checked(::accept(fd_, nullptr, nullptr), "accept"));
}

}  // namespace bimetal::net::testing
