#pragma once
// Sends the point-to-point messages of a group. They leave as frames. Long messages to a receiver
// on the same host leave through a ring of slots in shared memory, which is made with the first of
// them.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "bimetal/comm/shm/segment.h"
#include "bimetal/net/mesh.h"

namespace bimetal::comm {

/// Thread-safe. Peers are world ranks.
class MessageSender {
 public:
  /// `mesh` must outlive it.
  MessageSender(std::uint32_t group, const std::vector<int>& members, net::Mesh& mesh);

  /// Those that share memory with this rank.
  void use_memory(const std::vector<int>& peers);

  /// As Mesh::send, for a part of a message: parts (parts.h) to one peer arrive in the order of
  /// these calls.
  void send(int peer, const net::FrameHeader& header, std::span<const std::byte> payload,
            net::SendDone done);

  /// Handles the peer's word on the ring: kOpenedPart, kRefusedPart or kFreedPart.
  void on_ring(int peer, std::uint32_t word);

  /// The group has failed: no message waits for a slot any more. Those that waited go as frames.
  /// The receiver throws them away or, if it is stuck, they end with its connection.
  void give_up();

 private:
  struct Waiting {
    net::FrameHeader header;
    std::span<const std::byte> payload;
    net::SendDone done;
  };
  enum class Memory { none, not_yet, offered, open };
  struct Path {
    std::mutex mutex;  // held while frames are handed to the mesh, for their order
    Memory memory = Memory::none;
    std::optional<MessageRing> ring;  ///< from the offer on
    std::size_t free = 0;             ///< slots
    std::deque<Waiting> waiting;
  };

  void pump(int peer, Path& path);
  void offer(int peer, Path& path);
  void put(int peer, Path& path, Waiting& part);

  const std::uint32_t group_;
  net::Mesh& mesh_;
  std::map<int, Path> paths_;  // its keys never change
};

}  // namespace bimetal::comm
