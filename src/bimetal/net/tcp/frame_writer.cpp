#include "bimetal/net/tcp/frame_writer.h"

#include <algorithm>
#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>

namespace bimetal::net {
namespace {

constexpr std::size_t kMaxBatch = 16;  // two buffers each; systems gather at least 64
// So that the thread looks for what arrives now and then, and the peer begins to read while it
// does.
constexpr std::size_t kMaxBatchBytes = std::size_t{1} << 20;

}  // namespace

FrameWriter::FrameWriter(asio::ip::tcp::socket& socket, const SessionKey& key,
                         const std::optional<noise::CipherState>& cipher,
                         std::atomic<std::uint64_t>& bytes_sent)
    : bytes_(socket, cipher),
      key_(key),
      bytes_sent_(bytes_sent),
      wake_(socket.get_executor(), asio::steady_timer::time_point::max()) {}

void FrameWriter::push(FrameHeader header, std::span<const std::byte> payload, SendDone done) {
  if (failure_) {
    if (done) done(failure_);
    return;
  }
  header.payload_bytes = payload.size();
  queue_.push_back({encode_header(header, key_, frames_++), payload, std::move(done)});
  wake_.cancel();
}

asio::awaitable<std::error_code> FrameWriter::run() {
  std::error_code error;
  while (!failure_) {
    if (queue_.empty()) {
      if (finishing_) co_return std::error_code();
      co_await wake_.async_wait(asio::redirect_error(asio::use_awaitable, error));
      continue;
    }
    gather();
    const std::size_t written = co_await bytes_.write(buffers_, error);
    bytes_sent_.fetch_add(written, std::memory_order_relaxed);
    const std::size_t frames = std::exchange(batch_, 0);
    if (failure_ || error) break;
    complete(frames, nullptr);
  }
  if (failure_) complete(queue_.size(), failure_);
  co_return error;
}

void FrameWriter::gather() {
  buffers_.clear();
  batch_ = 0;
  for (std::size_t bytes = 0; batch_ < std::min(queue_.size(), kMaxBatch); ++batch_) {
    const Outgoing& frame = queue_[batch_];
    bytes += frame.payload.size();
    if (batch_ > 0 && bytes > kMaxBatchBytes) break;
    buffers_.push_back(asio::buffer(frame.header));
    if (!frame.payload.empty()) {
      buffers_.push_back(asio::buffer(frame.payload.data(), frame.payload.size()));
    }
  }
}

void FrameWriter::complete(std::size_t frames, const std::exception_ptr& error) {
  for (; frames > 0; --frames) {
    const SendDone done = std::move(queue_.front().done);
    queue_.pop_front();
    if (done) done(error);
  }
}

void FrameWriter::finish() {
  finishing_ = true;
  wake_.cancel();
}

void FrameWriter::fail(std::exception_ptr error) {
  if (failure_) return;
  failure_ = std::move(error);
  if (batch_ == 0) complete(queue_.size(), failure_);
  wake_.cancel();
}

}  // namespace bimetal::net
