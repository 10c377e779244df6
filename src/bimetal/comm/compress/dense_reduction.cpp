// All-reduce of encoded elements in two exchanges: every rank sends each other one that one's piece
// of the buffer; the owner of a piece decodes and adds in float32, encodes the sum once and sends
// it to all. So an element is rounded twice, however many ranks there are, and each link carries as
// much as with a ring.

#include "bimetal/comm/compress/dense_reduction.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/comm/compress/compressed_reduction.h"
#include "bimetal/comm/compress/compression.h"

namespace bimetal::comm {
namespace {

[[noreturn]] void not_dense(Scheme scheme) {
  throw Error(ErrorCode::Internal,
              fmt::format("{} has no form of its own for every element", to_string(scheme)));
}

}  // namespace

bool is_dense(Scheme scheme) noexcept {
  switch (scheme) {
    case Scheme::float16:
    case Scheme::bfloat16:
    case Scheme::int8:
    case Scheme::int4:
    case Scheme::sign: return true;
    case Scheme::none:
    case Scheme::topk:
    case Scheme::powersgd: break;
  }
  return false;
}

std::size_t encoded_bytes(Scheme scheme, std::size_t count) noexcept {
  switch (scheme) {
    case Scheme::float16:
    case Scheme::bfloat16: return half_bytes(count);
    case Scheme::int8: return int8_bytes(count);
    case Scheme::int4: return int4_bytes(count);
    case Scheme::sign: return sign_bytes(count);
    default: return 0;
  }
}

void encode(Scheme scheme, std::span<const float> values, std::span<std::byte> out) {
  switch (scheme) {
    case Scheme::float16: return encode_float16(values, out.data());
    case Scheme::bfloat16: return encode_bfloat16(values, out.data());
    case Scheme::int8: return encode_int8(values, out.data());
    case Scheme::int4: return encode_int4(values, out.data());
    case Scheme::sign: return encode_sign(values, out.data());
    default: not_dense(scheme);
  }
}

void decode(Scheme scheme, std::span<const std::byte> encoded, std::span<float> values) {
  if (!is_dense(scheme)) not_dense(scheme);
  if (const auto bytes = encoded_bytes(scheme, values.size()); encoded.size() != bytes) {
    throw Error(ErrorCode::CorruptData,
                fmt::format("{} elements by {} take {} bytes, but {} came", values.size(),
                            to_string(scheme), bytes, encoded.size()));
  }
  switch (scheme) {
    case Scheme::float16: return decode_float16(encoded.data(), values);
    case Scheme::bfloat16: return decode_bfloat16(encoded.data(), values);
    case Scheme::int8: return decode_int8(encoded.data(), values);
    case Scheme::int4: return decode_int4(encoded.data(), values);
    case Scheme::sign: return decode_sign(encoded.data(), values);
    default: return;
  }
}

namespace {

// Pieces and chunks end where blocks do.
constexpr std::size_t kGrain = kSignBlock;
static_assert(kGrain % kQuantBlock == 0);

// The number of elements encoded, sent and added at a time: with their codes they fit a
// second-level cache.
constexpr std::size_t kChunk = std::size_t{64} << 10;
static_assert(kChunk % kGrain == 0);

struct Elements {
  std::size_t first = 0;
  std::size_t count = 0;

  std::size_t chunks() const { return (count + kChunk - 1) / kChunk; }
  Elements chunk(std::size_t index) const {
    return {first + index * kChunk, std::min(kChunk, count - index * kChunk)};
  }
};

std::vector<Elements> pieces_of(std::size_t count, int n) {
  const std::size_t grains = (count + kGrain - 1) / kGrain;
  std::vector<Elements> pieces;
  std::size_t first = 0;
  for (int i = 0; i < n; ++i) {
    const std::size_t share = grains / n + (static_cast<std::size_t>(i) < grains % n ? 1 : 0);
    const std::size_t end = std::min(count, first + share * kGrain);
    pieces.push_back({first, end - first});
    first = end;
  }
  return pieces;
}

class DenseReduction {
 public:
  DenseReduction(Channel& channel, std::span<float> data, ReduceOp op,
                 const Compression& compression)
      : channel_(channel),
        data_(data),
        scheme_(compression.scheme),
        average_(op == ReduceOp::avg),
        memory_(compression.memory.get()),
        pieces_(pieces_of(data.size(), channel.size())),
        own_(pieces_[channel.rank()]),
        decoded_(std::min(kChunk, data.size())) {
    if (memory_) memory_->residual.resize(data.size());
  }

  void run() {
    post_receives();
    send_contributions();
    reduce_own();
    take_results();
    channel_.wait_sent();
  }

 private:
  struct Encoded {
    std::span<std::byte> bytes;
    Channel::Ticket ticket;
  };
  using Messages = std::vector<std::vector<Encoded>>;  // by step around the ring, by chunk

  int peer(int step) const { return channel_.neighbour(step); }
  std::span<float> values(Elements range) const { return data_.subspan(range.first, range.count); }
  std::span<float> residual(Elements range) const {
    return std::span(memory_->residual).subspan(range.first, range.count);
  }
  std::span<float> decoded(Elements range) { return std::span(decoded_).first(range.count); }

  std::vector<Encoded> receive(int from, Elements piece) {
    std::vector<Encoded> messages;
    for (std::size_t i = 0; i < piece.chunks(); ++i) {
      const auto into = channel_.scratch(encoded_bytes(scheme_, piece.chunk(i).count));
      messages.push_back({into, channel_.receive(from, into)});
    }
    return messages;
  }

  std::span<const std::byte> wait(const Encoded& message) {
    channel_.wait(message.ticket);
    return message.bytes;
  }

  void post_receives() {
    for (int step = 1; step < channel_.size(); ++step) {
      const int from = peer(-step);
      contributions_.push_back(receive(from, own_));
      results_.push_back(receive(from, pieces_[from]));
    }
  }

  // In the order in which the owners come to need them.
  void send_contributions() {
    const std::size_t chunks = std::ranges::max(pieces_, {}, &Elements::chunks).chunks();
    for (std::size_t i = 0; i < chunks; ++i) {
      for (int step = 1; step < channel_.size(); ++step) {
        const Elements& piece = pieces_[peer(step)];
        if (i < piece.chunks()) send_contribution(peer(step), piece.chunk(i));
      }
    }
  }

  void send_contribution(int to, Elements chunk) {
    const auto own = values(chunk);
    if (memory_) add(own, residual(chunk));
    const auto bytes = channel_.scratch(encoded_bytes(scheme_, chunk.count));
    encode(scheme_, own, bytes);
    channel_.send(to, bytes);
    if (!memory_) return;
    decode(scheme_, bytes, decoded(chunk));
    remember_lost(own, decoded(chunk), 1, residual(chunk));
  }

  void reduce_own() {
    for (std::size_t i = 0; i < own_.chunks(); ++i) {
      const Elements chunk = own_.chunk(i);
      const auto sum = values(chunk);
      if (memory_) add(sum, residual(chunk));
      for (const auto& messages : contributions_) {
        decode(scheme_, wait(messages[i]), decoded(chunk));
        add(sum, decoded(chunk));
      }
      publish(chunk, sum);
    }
  }

  // This rank keeps the error that encoding the sum makes, to correct it later.
  void publish(Elements chunk, std::span<float> sum) {
    const auto ranks = static_cast<float>(channel_.size());
    if (average_) std::ranges::transform(sum, sum.begin(), [&](float s) { return s / ranks; });
    const auto bytes = channel_.scratch(encoded_bytes(scheme_, chunk.count));
    encode(scheme_, sum, bytes);
    for (int step = 1; step < channel_.size(); ++step) channel_.send(peer(step), bytes);
    decode(scheme_, bytes, decoded(chunk));
    if (memory_) remember_lost(sum, decoded(chunk), average_ ? ranks : 1, residual(chunk));
    std::ranges::copy(decoded(chunk), sum.begin());
  }

  void take_results() {
    for (int step = 1; step < channel_.size(); ++step) {
      const Elements& piece = pieces_[peer(-step)];
      for (std::size_t i = 0; i < piece.chunks(); ++i) {
        decode(scheme_, wait(results_[step - 1][i]), values(piece.chunk(i)));
      }
    }
  }

  Channel& channel_;
  const std::span<float> data_;
  const Scheme scheme_;
  const bool average_;
  BucketMemory* const memory_;
  const std::vector<Elements> pieces_;
  const Elements own_;
  std::vector<float> decoded_;  // one chunk
  Messages contributions_;      // to the own piece
  Messages results_;            // of the others' pieces
};

}  // namespace

void dense_all_reduce(Channel& channel, std::span<float> data, ReduceOp op,
                      const Compression& compression) {
  if (channel.size() > 1) return DenseReduction(channel, data, op, compression).run();
  if (!compression.memory || compression.memory->residual.empty()) return;
  add(data, compression.memory->residual);
  std::ranges::fill(compression.memory->residual, 0.0f);
}

}  // namespace bimetal::comm
