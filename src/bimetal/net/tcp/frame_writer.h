#pragma once
// The queue of frames to one peer and the loop that puts them on its socket. It writes header and
// payload of several frames in one gathered write, with payloads straight from the sender's memory.
// On a plain connection it seals all payloads except long tensors (frame.h). Use it on the mesh's
// thread only.

#include <asio/awaitable.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <deque>
#include <exception>
#include <vector>

#include "bimetal/net/frame.h"
#include "bimetal/net/mesh.h"
#include "bimetal/net/tcp/byte_stream.h"

namespace bimetal::net {

/// Whether a frame goes out behind all that are queued, or past those that are not being written
/// yet: for short ones that a peer waits for while much is queued. Urgent ones keep their order.
enum class Priority { normal, urgent };

class FrameWriter {
 public:
  /// Bytes of payload written at once, but for a single longer frame: so that the thread looks for
  /// what arrives now and then, and the peer begins to read while it does.
  static constexpr std::size_t kBatchBytes = std::size_t{1} << 20;

  /// `bytes_sent` is added to as bytes go out. `cipher`: for an encrypted connection.
  FrameWriter(asio::ip::tcp::socket& socket, const SessionKey& key,
              const std::optional<noise::CipherState>& cipher,
              std::atomic<std::uint64_t>& bytes_sent, std::size_t batch_bytes = kBatchBytes);

  void push(FrameHeader header, std::span<const std::byte> payload, SendDone done,
            Priority priority = Priority::normal);

  bool idle() const noexcept { return queue_.empty() && urgent_.empty() && writing_.empty(); }

  /// Writes until `finish` and an empty queue (returns no error), a failed write (its error), or
  /// fail(). Run it once.
  asio::awaitable<std::error_code> run();

  /// Lets run() return once everything queued so far is on its way.
  void finish();

  /// Ends every queued frame with `error`, later ones too. The caller has closed the socket; frames
  /// that are being written end when that write has returned.
  void fail(std::exception_ptr error);

 private:
  struct Outgoing {
    FrameHeader header;
    EncodedHeader encoded;  ///< once it is being written: frames are numbered in that order
    std::span<const std::byte> payload;
    SendDone done;
  };

  void gather();
  void written(const std::exception_ptr& error);
  void end_all();

  ByteWriter bytes_;
  Seal seal_;
  const bool encrypted_;
  const std::size_t batch_bytes_;
  std::atomic<std::uint64_t>& bytes_sent_;
  std::deque<Outgoing> queue_, urgent_;
  std::vector<Outgoing> writing_;
  std::vector<asio::const_buffer> buffers_;  ///< of these
  bool in_write_ = false;
  asio::steady_timer wake_;
  bool finishing_ = false;
  std::exception_ptr failure_;
};

}  // namespace bimetal::net
