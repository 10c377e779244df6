#pragma once
// Plain blocking sockets on loopback, with a time limit on every call: what a stranger, an attacker
// or a peer of another version would use.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/net/endpoint.h"

namespace bimetal::net::testing {

class RawSocket {
 public:
  explicit RawSocket(int fd);
  ~RawSocket();
  RawSocket(RawSocket&& other) noexcept;
  RawSocket& operator=(RawSocket&&) = delete;

  /// `from`: of which of the loopback addresses.
  static RawSocket connect(const Endpoint& server, const char* from = "127.0.0.1");

  /// False once the other side has hung up; tests mostly ask with read() or hangs_up().
  bool write(std::span<const std::byte> bytes);
  bool write(std::string_view text);

  /// Exactly `size` bytes, or fewer where the stream ends or nothing comes for long.
  std::vector<std::byte> read(std::size_t size);

  /// Whether the other side hangs up (further bytes are skipped).
  bool hangs_up();

  void shut_down_writing();

 private:
  int fd_;
};

class RawServer {
 public:
  RawServer();
  ~RawServer();
  RawServer(const RawServer&) = delete;
  RawServer& operator=(const RawServer&) = delete;

  Endpoint endpoint() const { return endpoint_; }
  RawSocket accept();

 private:
  int fd_;
  Endpoint endpoint_;
};

}  // namespace bimetal::net::testing
