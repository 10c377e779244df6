#pragma once
// A session (session.h) whose messages are frames (net/frame.h). Parameter servers and prediction
// servers use it with their clients.

#include <atomic>

#include "bimetal/net/frame.h"
#include "bimetal/net/link/session.h"
#include "bimetal/net/tcp/frame_writer.h"

namespace bimetal::net {

struct FrameSessionOptions {
  std::chrono::milliseconds to_part{};  ///< as Session's
  std::size_t batch_bytes = FrameWriter::kBatchBytes;
  std::atomic<std::uint64_t>* bytes_sent = nullptr;  ///< added to, where somebody counts
};

class FrameSession : public Session {
 protected:
  FrameSession(asio::ip::tcp::socket socket, const SessionKeys& keys, Side side,
               const FrameSessionOptions& options);

  /// The header of the next message; heartbeats are passed over. Throws std::system_error where the
  /// connection ends, Error for bytes that are no message's.
  asio::awaitable<FrameHeader> next_frame();

  /// Its payload, which has the length of `into`: checked, if is_open() still.
  asio::awaitable<void> receive(FrameHeader header, std::span<std::byte> into);

  /// A heartbeat, unless something goes out anyway.
  void beat();

  FrameWriter& writer() noexcept { return writer_; }
  const FrameWriter& writer() const noexcept { return writer_; }

  asio::awaitable<std::error_code> send_messages() override { return writer_.run(); }
  void finish_sending() override { writer_.finish(); }
  void drop_unsent(const Error& why) override { writer_.fail(std::make_exception_ptr(why)); }

 private:
  std::atomic<std::uint64_t> uncounted_{0};
  FrameWriter writer_;
};

}  // namespace bimetal::net
