#include "bimetal/parallel/server/client/server_link.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>

#include "bimetal/base/error.h"
#include "bimetal/comm/compress/dense_reduction.h"

namespace bimetal::parallel::server {

namespace {

std::span<std::byte> memory_of(const IncomingParameters& set, const Piece& piece) {
  const auto& tensor = set.memory[piece.tensor];
  return {static_cast<std::byte*>(tensor.data_ptr()) + piece.offset * tensor.element_size(),
          static_cast<std::size_t>(piece.count * tensor.element_size())};
}

}  // namespace

std::span<std::byte> ServerLink::place(const net::FrameHeader& header) {
  const auto scheme = static_cast<comm::Scheme>(header.compression);
  const bool known = static_cast<MessageKind>(header.operation) == MessageKind::piece &&
                     !asked.empty() && header.part < plan_.pieces.size() &&
                     plan_.pieces[header.part].server == shard_ && scheme == asked.front()->scheme;
  if (!known) throw Error(ErrorCode::CorruptData, "tensors that have no place here");
  const Piece& piece = plan_.pieces[header.part];
  const auto& set = *asked.front();
  const auto memory = memory_of(set, piece);
  // Parameters that are here already, from a server that has died meanwhile, may be in use.
  if (scheme == comm::Scheme::none && !set.here[header.part]) return memory;
  beside_.resize(scheme == comm::Scheme::none
                     ? memory.size()
                     : comm::encoded_bytes(scheme, static_cast<std::size_t>(piece.count)));
  return beside_;
}

void ServerLink::on_piece(const net::FrameHeader& header, std::span<const std::byte> body) {
  auto& set = *asked.front();
  if (set.here[header.part]) return;
  set.here[header.part] = true;
  const Piece& piece = plan_.pieces[header.part];
  if (set.scheme != comm::Scheme::none) {
    comm::decode(set.scheme, body,
                 {reinterpret_cast<float*>(memory_of(set, piece).data()),
                  static_cast<std::size_t>(piece.count)});
  }
  const std::scoped_lock lock(arrivals_.mutex);
  set.oldest = std::min(set.oldest, header.sequence);
  if (--set.missing[piece.tensor] == 0) arrivals_.changed.notify_all();
}

void ServerLink::on_lease(const Lease& lease) {
  const std::scoped_lock lock(arrivals_.mutex);
  if (!leads_()) return;
  arrivals_.leases.push_back(lease);
  arrivals_.changed.notify_all();
}

void ServerLink::on_pulled(std::uint64_t version) {
  if (asked.empty() || !asked.front()->has(plan_, shard_)) {
    throw Error(ErrorCode::CorruptData, "parameters with gaps");
  }
  auto& set = *asked.front();
  asked.pop_front();
  --set.unanswered;
  const std::scoped_lock lock(arrivals_.mutex);
  set.oldest = std::min(set.oldest, version);
  set.newest = std::max(set.newest, version);
  ++set.shards_here;
  arrivals_.changed.notify_all();
}

void ServerLink::on_message(const net::FrameHeader& header, std::span<const std::byte> body) {
  const auto kind = static_cast<MessageKind>(header.operation);
  if (kind == MessageKind::piece) return on_piece(header, body);
  if (kind == MessageKind::pulled) {
    on_pulled(header.sequence);
    if (answered_) answered_();
    return;
  }
  if (kind == MessageKind::lease) {
    on_lease(decode_lease(body));
    if (answered_) answered_();
    return;
  }
  if (kind == MessageKind::memory_opened) return link->on_memory_opened(header.count == 1);
  const std::scoped_lock lock(arrivals_.mutex);
  switch (kind) {
    case MessageKind::welcome:
      if (arrivals_.number < 0) arrivals_.number = decode_welcome(body).number;
      if (arrivals_.number != decode_welcome(body).number && !arrivals_.failure) {
        arrivals_.failure =
            Error(ErrorCode::PeerLost,
                  fmt::format("server 0 has died while this worker joined, and its number, {}, "
                              "belongs to another one now: join again",
                              arrivals_.number),
                  0);
      }
      ++arrivals_.welcomes;
      if (arrivals_.ring_bytes > 0) link->offer_memory(arrivals_.ring_bytes);
      break;
    case MessageKind::refused:
      if (!arrivals_.failure) {
        const auto error = decode_refused(body);
        arrivals_.failure =
            Error(error.code(), fmt::format("{} refuses this worker: {}", name(), error.what()),
                  error.rank());
      }
      break;
    case MessageKind::finish: arrivals_.finished = true; break;
    default: throw Error(ErrorCode::CorruptData, "a message that has no place here");
  }
  arrivals_.changed.notify_all();
}

void ServerLink::on_closed(const Error& why) {
  gone = true;
  const bool goes_on = why.code() == ErrorCode::PeerLost && stood_in_for_();
  const std::scoped_lock lock(arrivals_.mutex);
  passed_over = goes_on;
  if (!goes_on && !arrivals_.failure && !arrivals_.finished) {
    const bool lost = why.code() == ErrorCode::PeerLost;
    arrivals_.failure =
        Error(why.code(),
              lost ? fmt::format("{} is lost: {}", name(), why.what())
                   : fmt::format("the connection with {} is broken: {}", name(), why.what()),
              server_);
  }
  arrivals_.changed.notify_all();
}

}  // namespace bimetal::parallel::server
