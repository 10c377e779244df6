#include "bimetal/net/link/frame_session.h"

#include <utility>

#include "bimetal/net/tcp/sockets.h"

namespace bimetal::net {
namespace {

// Beyond it the kernel gives a connection up of which nothing is acknowledged. Who uses it knows
// better, and sooner, how long its other side may be silent.
constexpr std::chrono::milliseconds kPathTimeout{std::chrono::minutes(5)};

}  // namespace

FrameSession::FrameSession(asio::ip::tcp::socket connected, const SessionKeys& keys, Side side,
                           const FrameSessionOptions& options)
    : Session(std::move(connected), keys, side, options.to_part),
      writer_(socket(), sent_by(side, keys).seal, sent_by(side, keys).cipher,
              options.bytes_sent ? *options.bytes_sent : uncounted_, options.batch_bytes) {
  tune_for_frames(socket(), kPathTimeout);
}

asio::awaitable<FrameHeader> FrameSession::next_frame() {
  for (EncodedHeader bytes;;) {
    co_await reader().fill(bytes);
    const FrameHeader header = decode_header(bytes, incoming());
    if (header.kind == FrameKind::Data) co_return header;
    if (header.kind != FrameKind::Heartbeat || header.payload_bytes != 0) {
      throw Error(ErrorCode::CorruptData, "a frame of a kind that has no place here");
    }
  }
}

asio::awaitable<void> FrameSession::receive(FrameHeader header, std::span<std::byte> into) {
  co_await reader().fill(into);
  // Else it may be nobody's memory any more.
  if (is_open()) check_payload(header, into, incoming());
}

void FrameSession::beat() {
  if (!writer_.idle()) return;
  FrameHeader heartbeat;
  heartbeat.kind = FrameKind::Heartbeat;
  writer_.push(heartbeat, {}, {});
}

}  // namespace bimetal::net
