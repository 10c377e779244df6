#include "bimetal/net/tcp/frame_writer.h"

#include <asio/redirect_error.hpp>
#include <asio/use_awaitable.hpp>
#include <utility>

namespace bimetal::net {
namespace {

constexpr std::size_t kMaxBatch = 16;  // two buffers each; systems gather at least 64

}  // namespace

FrameWriter::FrameWriter(asio::ip::tcp::socket& socket, const SessionKey& key,
                         const std::optional<noise::CipherState>& cipher,
                         std::atomic<std::uint64_t>& bytes_sent, std::size_t batch_bytes)
    : bytes_(socket, cipher),
      seal_(key),
      encrypted_(cipher.has_value()),
      batch_bytes_(batch_bytes),
      bytes_sent_(bytes_sent),
      wake_(socket.get_executor(), asio::steady_timer::time_point::max()) {}

void FrameWriter::push(FrameHeader header, std::span<const std::byte> payload, SendDone done,
                       Priority priority) {
  if (failure_) {
    if (done) done(failure_);
    return;
  }
  header.payload_bytes = payload.size();
  auto& queue = priority == Priority::urgent ? urgent_ : queue_;
  queue.push_back({header, {}, payload, std::move(done)});
  wake_.cancel();
}

asio::awaitable<std::error_code> FrameWriter::run() {
  std::error_code error;
  while (!failure_) {
    gather();
    if (writing_.empty()) {
      if (finishing_) co_return std::error_code();
      co_await wake_.async_wait(asio::redirect_error(asio::use_awaitable, error));
      continue;
    }
    in_write_ = true;
    const std::size_t bytes = co_await bytes_.write(buffers_, error);
    in_write_ = false;
    bytes_sent_.fetch_add(bytes, std::memory_order_relaxed);
    if (failure_ || error) break;
    written(nullptr);
  }
  if (failure_) end_all();
  co_return error;
}

void FrameWriter::gather() {
  std::size_t bytes = 0;
  for (auto* queue : {&urgent_, &queue_}) {
    while (!queue->empty() && writing_.size() < kMaxBatch) {
      bytes += queue->front().payload.size();
      if (!writing_.empty() && bytes > batch_bytes_) break;
      writing_.push_back(std::move(queue->front()));
      queue->pop_front();
    }
  }
  buffers_.clear();
  for (Outgoing& frame : writing_) {
    if (encrypted_) {
      frame.header.sealed = false;  // every byte has a tag already
    } else {
      seal_payload(frame.header, frame.payload, seal_);
    }
    frame.encoded = encode_header(frame.header, seal_);
    buffers_.push_back(asio::buffer(frame.encoded));
    if (!frame.payload.empty()) {
      buffers_.push_back(asio::buffer(frame.payload.data(), frame.payload.size()));
    }
  }
}

/// What was being written is out, or never will be.
void FrameWriter::written(const std::exception_ptr& error) {
  for (const Outgoing& frame : std::exchange(writing_, {})) {
    if (frame.done) frame.done(error);
  }
}

void FrameWriter::end_all() {
  written(failure_);
  for (auto* queue : {&urgent_, &queue_}) {
    while (!queue->empty()) {
      const SendDone done = std::move(queue->front().done);
      queue->pop_front();
      if (done) done(failure_);
    }
  }
}

void FrameWriter::finish() {
  finishing_ = true;
  wake_.cancel();
}

void FrameWriter::fail(std::exception_ptr error) {
  if (failure_) return;
  failure_ = std::move(error);
  if (!in_write_) end_all();
  wake_.cancel();
}

}  // namespace bimetal::net
