#pragma once
// Shared memory of both ends of a connection, for its tensors: a ring for each direction. A frame
// on the connection announces each payload in a ring. So the connection keeps the order and wakes
// the other side; only the bytes take the shorter way. Private to link.cpp.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "bimetal/net/shm/shared_memory.h"
#include "bimetal/parallel/server/link/message.h"

namespace bimetal::parallel::server {

/// One direction. Both ends keep their own positions and never believe the other's: where a payload
/// lies follows from the lengths before it. Use each end from one thread.
class SharedRing {
 public:
  explicit SharedRing(std::span<std::byte> memory) : memory_(memory) {}

  /// Whether a payload can go this way at all: at most a quarter of the ring. As much may be taken
  /// without the sender's having been told, as much be skipped at the ring's end: there is always
  /// room for one once all is taken.
  bool fits(std::size_t bytes) const noexcept { return bytes <= memory_.size() / 4; }

  /// Sender: false where there is no room yet. `payload` must fit.
  bool put(std::span<const std::byte> payload);
  /// Sender: the receiver has taken so many bytes so far. Error(CorruptData) if that cannot be.
  void on_taken(std::uint64_t taken);

  /// Receiver: the next payload; it has the length of `into`. Error(CorruptData) if none fits so.
  void take(std::span<std::byte> into);
  /// Receiver: the count to tell the sender, once it has grown by a good part of the ring.
  std::optional<std::uint64_t> news();

 private:
  std::uint64_t begin_of(std::uint64_t end, std::size_t bytes) const noexcept;

  std::span<std::byte> memory_;
  std::uint64_t end_ = 0;    ///< bytes so far, those that were skipped at the ring's end included
  std::uint64_t taken_ = 0;  ///< sender: as told; receiver: as it has told
};

/// Both rings of one connection in one segment.
class SharedPath {
 public:
  /// The client's: makes the segment. Errors of net::SharedMemory::create.
  static std::unique_ptr<SharedPath> make(std::size_t ring_bytes);
  /// The server's: opens it. Error(CorruptData) for bytes that are no offer, errors of
  /// net::SharedMemory::open where the two share no memory; Unsupported, too, where BIMETAL_ISLAND
  /// keeps them apart.
  static std::unique_ptr<SharedPath> open(std::span<const std::byte> offer);

  /// Everything that the server needs to open it.
  Body offer() const;
  /// Both have it: nobody else needs to find it.
  void opened() noexcept { segment_.forget_name(); }

  SharedRing& out() noexcept { return client_ ? to_server_ : to_client_; }
  SharedRing& in() noexcept { return client_ ? to_client_ : to_server_; }

 private:
  SharedPath(net::SharedMemory segment, bool client);

  net::SharedMemory segment_;
  bool client_;
  SharedRing to_server_, to_client_;
};

}  // namespace bimetal::parallel::server
