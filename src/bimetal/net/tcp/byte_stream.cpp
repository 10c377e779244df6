#include "bimetal/net/tcp/byte_stream.h"

#include <algorithm>
#include <asio/error.hpp>
#include <asio/read.hpp>
#include <asio/redirect_error.hpp>
#include <asio/this_coro.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/write.hpp>
#include <cstring>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/net/tcp/connection.h"

namespace bimetal::net {
namespace {

constexpr std::size_t kLengthBytes = 2;
constexpr std::size_t kMaxRecordBytes = kLengthBytes + noise::kMaxMessageBytes;
constexpr std::size_t kMaxPlaintext = noise::kMaxMessageBytes - noise::kTagBytes;
// Enough to make system calls rare; the memory is each connection's own.
constexpr std::size_t kRecordsPerWrite = 4;
constexpr std::size_t kReadBytes = 2 * kMaxRecordBytes;

constexpr std::size_t kMaxBatch = 16;  // two buffers each; systems gather at least 64

}  // namespace

void RecordCipher::encrypt(std::span<const std::byte> plaintext, std::byte* out) {
  cipher_.encrypt({}, plaintext, out);
  count();
}

std::span<std::byte> RecordCipher::decrypt(std::span<std::byte> message) {
  const auto plaintext = cipher_.decrypt({}, message);
  count();
  return plaintext;
}

void RecordCipher::count() {
  if (++records_ % records_per_key_ == 0) cipher_.rekey();
}

ByteReader::ByteReader(asio::ip::tcp::socket& socket,
                       const std::optional<noise::CipherState>& cipher)
    : socket_(socket) {
  if (!cipher) return;
  cipher_.emplace(*cipher);
  buffer_.resize(kReadBytes);
}

std::size_t ByteReader::TellOfEach::operator()(const std::error_code& error,
                                               std::size_t so_far) const {
  reader->tell_of(so_far);
  return as_much_as_fits(error, so_far);
}

asio::awaitable<std::error_code> ByteReader::read(std::span<std::byte> into) {
  std::error_code error;
  if (!cipher_) {
    const TellOfEach condition{this};
    const std::size_t size =
        co_await asio::async_read(socket_, asio::buffer(into.data(), into.size()), condition,
                                  asio::redirect_error(asio::use_awaitable, error));
    tell_of(size);  // the condition is not asked about the last part
    co_return error;
  }
  while (!into.empty()) {
    if (plaintext_.empty()) {
      if (error = co_await next_record(); error) co_return error;
      // The end may have come before the reader was told to stop, and the order to stop since.
      const auto told = co_await asio::this_coro::cancellation_state;
      if (told.cancelled() != asio::cancellation_type::none)
        co_return asio::error::operation_aborted;
      continue;
    }
    const std::size_t size = std::min(into.size(), plaintext_.size());
    std::memcpy(into.data(), plaintext_.data(), size);
    into = into.subspan(size);
    plaintext_ = plaintext_.subspan(size);
  }
  co_return error;
}

asio::awaitable<void> ByteReader::fill(std::span<std::byte> into) {
  if (const auto error = co_await read(into)) throw std::system_error(error);
}

/// The length of the record at begin_, its length field included, once all of it is there.
std::optional<std::size_t> ByteReader::whole_record() const {
  if (end_ - begin_ < kLengthBytes) return std::nullopt;
  const std::size_t size = kLengthBytes + std::to_integer<std::size_t>(buffer_[begin_]) +
                           256 * std::to_integer<std::size_t>(buffer_[begin_ + 1]);
  if (end_ - begin_ < size) return std::nullopt;
  return size;
}

asio::awaitable<std::error_code> ByteReader::next_record() {
  while (!whole_record()) {
    // Room for a whole record of any length: nothing depends on what its length field says.
    if (buffer_.size() - begin_ < kMaxRecordBytes) {
      std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_),
                buffer_.begin() + static_cast<std::ptrdiff_t>(end_), buffer_.begin());
      end_ -= std::exchange(begin_, 0);
    }
    std::error_code error;
    const std::size_t arrived =
        co_await socket_.async_read_some(asio::buffer(buffer_.data() + end_, buffer_.size() - end_),
                                         asio::redirect_error(asio::use_awaitable, error));
    end_ += arrived;
    if (error) co_return error;
    tell_of(arrived);
  }
  const std::size_t size = *whole_record();
  plaintext_ = cipher_->decrypt(std::span(buffer_).subspan(begin_, size).subspan(kLengthBytes));
  begin_ += size;
  if (begin_ == end_) begin_ = end_ = 0;
  co_return std::error_code();
}

ByteWriter::ByteWriter(asio::ip::tcp::socket& socket,
                       const std::optional<noise::CipherState>& cipher)
    : socket_(socket) {
  if (!cipher) return;
  cipher_.emplace(*cipher);
  sealed_.resize(kRecordsPerWrite * kMaxRecordBytes);
}

asio::awaitable<std::size_t> ByteWriter::write(std::span<const asio::const_buffer> buffers,
                                               std::error_code& error) {
  if (!cipher_) {
    co_return co_await asio::async_write(socket_, buffers, as_much_as_fits,
                                         asio::redirect_error(asio::use_awaitable, error));
  }
  std::size_t written = 0;
  error.clear();
  while (!buffers.empty() && !error) {
    const std::size_t size = seal_some(buffers);
    written +=
        co_await asio::async_write(socket_, asio::buffer(sealed_.data(), size), as_much_as_fits,
                                   asio::redirect_error(asio::use_awaitable, error));
  }
  co_return written;
}

/// Fills sealed_ with records made from the head of `buffers`, which are taken off; returns the
/// bytes to be sent.
std::size_t ByteWriter::seal_some(std::span<const asio::const_buffer>& buffers) {
  std::size_t end = 0;
  for (std::size_t record = 0; record < kRecordsPerWrite && !buffers.empty(); ++record) {
    std::byte* const start = sealed_.data() + end;
    std::byte* const text = start + kLengthBytes;
    std::size_t size = 0;
    while (!buffers.empty() && size < kMaxPlaintext) {
      const asio::const_buffer rest = buffers.front() + taken_;
      const std::size_t part = std::min(rest.size(), kMaxPlaintext - size);
      if (part > 0) std::memcpy(text + size, rest.data(), part);
      size += part;
      taken_ += part;
      if (taken_ < buffers.front().size()) continue;
      buffers = buffers.subspan(1);
      taken_ = 0;
    }
    cipher_->encrypt({text, size}, text);
    const std::size_t message = size + noise::kTagBytes;
    start[0] = static_cast<std::byte>(message & 0xff);
    start[1] = static_cast<std::byte>(message >> 8);
    end += kLengthBytes + message;
  }
  return end;
}

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

/// The frames under way have been written, or never will be.
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
