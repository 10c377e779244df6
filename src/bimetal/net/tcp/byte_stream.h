#pragma once
// The two directions of an authenticated connection, plain or encrypted. Encrypted bytes travel in
// records: a u16 length and a Noise message of at most 65535 bytes. Each direction takes a new key
// every kRecordsPerKey records. docs/protocol.md has the format. Use it on one thread only.
//
// The queue of frames to one peer and the loop that puts them on its socket. It writes header and
// payload of several frames in one gathered write, with payloads straight from the sender's memory.
// On a plain connection it seals all payloads except long tensors (frame.h). Use it on the mesh's
// thread only.

#include <asio/awaitable.hpp>
#include <asio/buffer.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <system_error>
#include <vector>

#include "bimetal/net/frame.h"
#include "bimetal/net/mesh.h"
#include "bimetal/net/noise.h"

namespace bimetal::net {

inline constexpr std::uint64_t kRecordsPerKey = std::uint64_t{1} << 16;

/// A direction's cipher and the records under its present key.
class RecordCipher {
 public:
  explicit RecordCipher(noise::CipherState cipher, std::uint64_t records_per_key = kRecordsPerKey)
      : cipher_(std::move(cipher)), records_per_key_(records_per_key) {}

  /// As in CipherState, without associated data.
  void encrypt(std::span<const std::byte> plaintext, std::byte* out);
  std::span<std::byte> decrypt(std::span<std::byte> message);

 private:
  void count();

  noise::CipherState cipher_;
  const std::uint64_t records_per_key_;
  std::uint64_t records_ = 0;
};

class ByteReader {
 public:
  /// `cipher`: that of this direction, for an encrypted connection.
  explicit ByteReader(asio::ip::tcp::socket& socket,
                      const std::optional<noise::CipherState>& cipher = {});

  /// `told` is called whenever bytes have come, however few of what read() waits for.
  void on_arrival(std::function<void()> told) { on_arrival_ = std::move(told); }

  /// Fills `into`; returns an error where the connection ends before. Throws Error(CorruptData) for
  /// a record that is not the other side's next one: none of its bytes get to `into`.
  asio::awaitable<std::error_code> read(std::span<std::byte> into);
  /// The same, but such an error is thrown as std::system_error.
  asio::awaitable<void> fill(std::span<std::byte> into);

 private:
  asio::awaitable<std::error_code> next_record();
  std::optional<std::size_t> whole_record() const;
  void tell_of(std::size_t bytes) const {
    if (bytes > 0 && on_arrival_) on_arrival_();
  }
  /// Asio's completion condition of a read of everything, which hears of each part.
  struct TellOfEach {
    std::size_t operator()(const std::error_code& error, std::size_t so_far) const;
    const ByteReader* reader;
  };

  asio::ip::tcp::socket& socket_;
  std::optional<RecordCipher> cipher_;
  std::function<void()> on_arrival_;
  std::vector<std::byte> buffer_;  ///< as the bytes came, from begin_ to end_
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::span<std::byte> plaintext_;  ///< of the last record, as far as it has not been read
};

class ByteWriter {
 public:
  explicit ByteWriter(asio::ip::tcp::socket& socket,
                      const std::optional<noise::CipherState>& cipher = {});

  /// Writes all of `buffers`, or sets `error`. Returns the bytes put on the wire.
  asio::awaitable<std::size_t> write(std::span<const asio::const_buffer> buffers,
                                     std::error_code& error);

 private:
  std::size_t seal_some(std::span<const asio::const_buffer>& buffers);

  asio::ip::tcp::socket& socket_;
  std::optional<RecordCipher> cipher_;
  std::vector<std::byte> sealed_;
  std::size_t taken_ = 0;  ///< bytes of the first buffer that are sealed already
};

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
