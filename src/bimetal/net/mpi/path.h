#pragma once
// The frames between this rank and one other over MPI, as net/tcp/connection.h is over TCP.
//
// A frame travels as one message, its header before its payload. A payload longer than kChunkBytes
// continues in messages of payload alone. Payloads pass through this path's own memory on both
// sides: MPI cannot release a buffer while a peer is stuck in the middle of a message. A failed
// group, however, must give its buffers back. So MPI never sees them.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "bimetal/net/mesh.h"
#include "bimetal/net/mpi/mpi_thread.h"

namespace bimetal::net::mpi {

/// Everything happens on the MPI thread.
class Path : public std::enable_shared_from_this<Path> {
 public:
  static constexpr std::size_t kChunkBytes = std::size_t{256} << 10;

  /// `peer_name` is for messages: "rank 1 (host)".
  Path(MpiThread& mpi, int peer, int tag, std::string peer_name,
       std::shared_ptr<std::atomic<std::uint64_t>> bytes_sent);

  void start(FrameReceiver& receiver);
  void send(const FrameHeader& header, std::span<const std::byte> payload, SendDone done);
  void resume();

  /// Says goodbye after the queue, then calls `finished`: when the peer has done so, too, or at
  /// once where the path has ended already. From now on nothing is delivered and no loss reported.
  void leave(std::function<void()> finished);

  /// Ends the path at once as if it had been lost, and reports that.
  void drop();

  /// Ends the path at once without a report; frames not yet sent end in `reason`. `finished` of
  /// leave() is called.
  void abandon(const Error& reason);

 private:
  using Memory = std::shared_ptr<std::byte[]>;

  enum class State {
    open,
    departed,  ///< the peer has said goodbye; ours follows after the queue
    leaving,   ///< leave() was called
    ended,
  };

  /// A frame on its way out; `sent` bytes of its payload have left.
  struct Outgoing {
    FrameHeader header;
    std::span<const std::byte> payload;
    SendDone done;
    bool begun = false;
    std::size_t sent = 0;
  };

  /// Room for one message, posted to MPI.
  struct Slot {
    Memory memory;
    Handle request = 0;
    bool posted = false;
    bool arrived = false;
    std::size_t bytes = 0;
  };

  /// A frame on its way in.
  struct Incoming {
    FrameHeader header;
    std::span<std::byte> place;
    bool thrown_away = false;
    std::size_t arrived = 0;
  };

  Address address() const { return {mpi_.communicator(), peer_, tag_}; }
  bool receives() const noexcept { return state_ != State::ended && !peer_left_; }

  void flush();
  void send_chunk(Outgoing& frame);
  void send_message(Memory memory, std::size_t bytes, bool last);
  void on_sent(std::uint64_t number, bool synchronous, const Completion& completion);

  void listen();
  void post(const std::shared_ptr<Slot>& slot);
  void on_arrival(Slot& slot, const Completion& completion);
  void take_arrived();
  bool take(std::span<const std::byte> message);
  bool begin_frame(std::span<const std::byte> message);
  void fill(std::span<const std::byte> bytes);

  void on_goodbye();
  void say_goodbye();
  void end_if_over();
  void break_off();
  void lose(const Error& error);
  void lose(const std::string& how);
  void report(const Error& error);
  void end(const Error& reason);

  MpiThread& mpi_;
  const int peer_;
  const int tag_;
  const std::string peer_name_;
  const std::shared_ptr<std::atomic<std::uint64_t>> bytes_sent_;

  FrameReceiver* receiver_ = nullptr;
  State state_ = State::open;
  bool quiet_ = false;      ///< no loss (or no further one) is to be reported
  bool peer_left_ = false;  ///< the peer has said goodbye
  bool goodbye_sent_ = false;
  std::optional<Error> unreported_;  ///< a loss from before start()
  std::exception_ptr refusal_;       ///< why nothing is sent any more
  std::function<void()> finished_;

  std::deque<Outgoing> queue_;
  // Nobody outside the job writes to this path: the sums of headers, by a key that is none, are
  // there to find bugs and broken memory.
  Seal outgoing_seal_{SessionKey{}}, incoming_seal_{SessionKey{}};
  std::uint64_t messages_sent_ = 0;
  std::uint64_t messages_taken_ = 0;  ///< that the peer has begun to receive, as far as is known
  int under_way_ = 0;                 ///< sends that MPI has not ended

  std::deque<std::shared_ptr<Slot>> slots_;  ///< in the order of their messages
  std::optional<Incoming> incoming_;
  bool paused_ = false;
};

}  // namespace bimetal::net::mpi
