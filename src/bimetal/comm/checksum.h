#pragma once
// A number by which to notice that bytes differ (FNV-1a, 64 bits): it guards against mistakes, not
// against forgery.

#include <cstddef>
#include <cstdint>
#include <span>

namespace bimetal::comm {

/// Values travel between ranks, and must stay what they are.
class Checksum {
 public:
  void take(std::uint64_t word) noexcept { value_ = (value_ ^ word) * 0x100000001b3u; }
  void take(std::span<const std::byte> bytes) noexcept {
    for (const std::byte byte : bytes) take(std::to_integer<std::uint64_t>(byte));
  }
  std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325u;
};

inline std::uint64_t checksum_of(std::span<const std::byte> bytes) noexcept {
  Checksum sum;
  sum.take(bytes);
  return sum.value();
}

}  // namespace bimetal::comm
