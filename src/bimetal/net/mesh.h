#pragma once
// A mesh of authenticated, ordered byte paths between the ranks of one job. Transports implement it
// (net/tcp, net/mpi); comm builds messages and collectives on it. In a large world a path opens
// when it is first needed (Mesh::complete).

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/net/frame.h"

namespace bimetal::net {

/// Told of arriving frames on the mesh's own thread; must return quickly and must not throw.
class FrameReceiver {
 public:
  virtual ~FrameReceiver() = default;

  /// Where a frame's payload goes. `bytes` must hold exactly header.payload_bytes and stay valid
  /// until on_payload. `pause` leaves the payload unread (back-pressure on this peer alone) until
  /// Mesh::resume(peer), whereupon on_header is called again for the same frame.
  struct Placement {
    std::span<std::byte> bytes;
    bool pause = false;
  };
  virtual Placement on_header(int peer, const FrameHeader& header) = 0;

  /// The payload has arrived whole in the place given by on_header (also called for empty ones).
  virtual void on_payload(int peer, const FrameHeader& header) = 0;

  /// The path to `peer` has ended; called once per peer at most. error.code() is PeerLost for a
  /// vanished peer, CorruptData or ProtocolMismatch for bad bytes. Not called for an orderly
  /// Goodbye, unless something is sent to that peer afterwards.
  virtual void on_lost(int peer, const Error& error) = 0;

  /// A path has opened after the start. Frames may have been queued for it before.
  virtual void on_open(int) {}
};

/// Whether ranks `a` and `b` are a power of two apart on the ring of `size` ranks. In a large world
/// these connect at the start: 2·log2(size) for each rank, by which every other one is reached in
/// about log2(size)/2 steps, also around those that are lost.
bool near_on_ring(int a, int b, int size) noexcept;

/// Called exactly once, on the mesh's thread (by send() itself when the mesh is closed already),
/// with nullptr when the bytes have left the buffer.
using SendDone = std::function<void(std::exception_ptr)>;

class Mesh {
 public:
  virtual ~Mesh() = default;

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;

  /// Starts delivery. `receiver` must outlive the mesh or the return of close().
  virtual void start(FrameReceiver& receiver) = 0;

  /// Queues a frame for `peer` (never this rank). Does not block; frames to one peer arrive in the
  /// order of the calls. `payload` must stay valid until `done`; header.payload_bytes is set from
  /// it. Thread-safe.
  virtual void send(int peer, FrameHeader header, std::span<const std::byte> payload,
                    SendDone done) = 0;

  /// Lets a paused peer's frame be offered to on_header again. Thread-safe.
  virtual void resume(int peer) = 0;

  /// Ends the path to `peer` now, as if it had been lost: pending sends to it end in an error, a
  /// payload half read is given up, and on_lost follows (PeerLost) unless it has been called
  /// before. By then the mesh touches no buffer of that path any more. Does not block.
  /// Thread-safe. It lets a failed group hand its buffers back although a peer is stuck.
  virtual void drop(int peer) = 0;

  /// Says goodbye to every peer after queued frames have been sent, waits for that until
  /// `deadline`, then closes. Pending sends that could not be sent end in Error(Aborted). After it
  /// returns the receiver is not called any more. Idempotent. Waits for the mesh's thread: not to
  /// be called from a FrameReceiver or a SendDone.
  virtual void close(Deadline deadline) = 0;

  /// Bytes put on the wire so far, headers included. Thread-safe.
  virtual std::uint64_t bytes_sent() const noexcept = 0;

  /// Whether frames to `peer` never leave this machine, as far as the transport can tell.
  virtual bool stays_on_host(int) const noexcept { return true; }

  /// Whether all paths are open from the start. The same on all ranks.
  virtual bool complete() const noexcept { return true; }

  /// Whether the path to `peer` is open. Thread-safe.
  virtual bool is_open(int) const noexcept { return true; }

  /// Opens the path to `peer` as send() would, for those that wait for its frames: on_lost follows
  /// if nobody is there. Does not block. Thread-safe.
  virtual void open(int) {}

  /// The carrier of the bytes: "tcp" or "mpi". The same on all ranks.
  virtual std::string_view carrier() const noexcept { return "tcp"; }

  /// Host name or address of a peer as the rendezvous knows it, for messages ("mac.local").
  virtual std::string host_of(int peer) const = 0;
};

// The mesh of a job with one rank: no peers, no sockets, no thread.

/// `host_name` is what host_of(0) says.
std::unique_ptr<Mesh> make_solo_mesh(std::string host_name);

}  // namespace bimetal::net
