#pragma once
// Memory that collectives of a group can work on without copies.

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

namespace bimetal::comm {

/// A shared handle; the memory lives as long as any handle to it, the group's end included. It
/// begins at a page. Not thread-safe itself, as no vector is.
class GroupMemory {
 public:
  GroupMemory() = default;
  /// `shared`: whether the other ranks of the machine see it.
  GroupMemory(std::shared_ptr<const void> owner, std::span<std::byte> bytes, bool shared)
      : owner_(std::move(owner)), bytes_(bytes), shared_(shared) {}

  std::span<std::byte> bytes() const noexcept { return bytes_; }  ///< all of it

  /// Whether the group's other ranks can reach it. If not it is memory like any other.
  bool shared() const noexcept { return shared_; }

 private:
  std::shared_ptr<const void> owner_;
  std::span<std::byte> bytes_;
  bool shared_ = false;
};

}  // namespace bimetal::comm
