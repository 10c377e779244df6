#pragma once
// Checks that a client of an HTTP server knows its token.

#include <array>
#include <string_view>

#include "bimetal/net/token.h"

namespace bimetal::net {

/// Compares secrets by way of their hashes, in a time that tells nothing about either.
class BearerCheck {
 public:
  /// An empty token lets everybody in.
  explicit BearerCheck(const Token& token);

  bool admits(std::string_view bearer) const;

 private:
  using Hash = std::array<unsigned char, 32>;
  static Hash hash_of(std::string_view text);

  bool open_;
  Hash hash_;
};

}  // namespace bimetal::net
