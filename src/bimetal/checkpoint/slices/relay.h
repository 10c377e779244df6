#pragma once
// Bytes of any number on their way from one rank to another, piece by piece: neither has more than
// a piece of them in memory.

#include <cstddef>
#include <exception>
#include <span>
#include <vector>

#include "bimetal/comm/group.h"

namespace bimetal::checkpoint {

/// Whoever receives wants no more: it has said why elsewhere.
struct RelayRefused : std::exception {
  const char* what() const noexcept override { return "the receiver has no use for more"; }
};

/// One end; the other is the peer's RelayIn. Waits for the peer with every piece, by kFileTimeout.
/// Errors: the fabric's.
class RelayOut {
 public:
  RelayOut(comm::Group group, int peer);
  /// Throws RelayRefused.
  void write(std::span<const std::byte> bytes);
  /// That was all. Throws RelayRefused.
  void end();

 private:
  void send_piece();

  comm::Group group_;
  int peer_;
  std::vector<std::byte> piece_;
};

class RelayIn {
 public:
  RelayIn(comm::Group group, int peer);
  /// False at the end.
  bool next(std::vector<std::byte>& piece);
  /// In place of next(): the end, though there is more.
  void refuse();

 private:
  comm::Group group_;
  int peer_;
};

}  // namespace bimetal::checkpoint
