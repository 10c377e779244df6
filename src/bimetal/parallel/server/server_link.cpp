#include "bimetal/parallel/server/server_link.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>

#include "bimetal/base/error.h"
#include "bimetal/comm/compress/dense_codec.h"

namespace bimetal::parallel::server {

std::span<std::byte> ServerLink::memory_of(const Piece& piece) const {
  const auto& tensor = host_[piece.tensor];
  return {static_cast<std::byte*>(tensor.data_ptr()) + piece.offset * tensor.element_size(),
          static_cast<std::size_t>(piece.count * tensor.element_size())};
}

std::span<std::byte> ServerLink::place(const net::FrameHeader& header) {
  const auto scheme = static_cast<comm::Scheme>(header.compression);
  const bool known = static_cast<MessageKind>(header.operation) == MessageKind::piece && asked &&
                     header.part < plan_.pieces.size() &&
                     plan_.pieces[header.part].server == shard_ && scheme == arrivals_.scheme;
  if (!known) throw Error(ErrorCode::CorruptData, "tensors that have no place here");
  const Piece& piece = plan_.pieces[header.part];
  // What is here already, from a server that has died meanwhile, may be in use.
  if (scheme == comm::Scheme::none && !arrivals_.here[header.part]) return memory_of(piece);
  beside_.resize(scheme == comm::Scheme::none
                     ? memory_of(piece).size()
                     : comm::encoded_bytes(scheme, static_cast<std::size_t>(piece.count)));
  return beside_;
}

void ServerLink::on_piece(const net::FrameHeader& header, std::span<const std::byte> body) {
  if (arrivals_.here[header.part]) return;
  arrivals_.here[header.part] = true;
  const Piece& piece = plan_.pieces[header.part];
  if (arrivals_.scheme != comm::Scheme::none) {
    comm::decode(
        arrivals_.scheme, body,
        {reinterpret_cast<float*>(memory_of(piece).data()), static_cast<std::size_t>(piece.count)});
  }
  const std::scoped_lock lock(arrivals_.mutex);
  arrivals_.oldest = std::min(arrivals_.oldest, header.sequence);
  if (--arrivals_.missing[piece.tensor] == 0) arrivals_.changed.notify_all();
}

/// Whether every piece of this shard is here.
bool ServerLink::whole() const {
  for (std::size_t i = 0; i < plan_.pieces.size(); ++i) {
    if (plan_.pieces[i].server == shard_ && !arrivals_.here[i]) return false;
  }
  return true;
}

void ServerLink::on_message(const net::FrameHeader& header, std::span<const std::byte> body) {
  const auto kind = static_cast<MessageKind>(header.operation);
  if (kind == MessageKind::piece) return on_piece(header, body);
  if (kind == MessageKind::memory_opened) return link->on_memory_opened(header.count == 1);
  const std::scoped_lock lock(arrivals_.mutex);
  switch (kind) {
    case MessageKind::welcome:
      if (arrivals_.number < 0) arrivals_.number = decode_welcome(body).number;
      ++arrivals_.welcomes;
      if (arrivals_.ring_bytes > 0) link->offer_memory(arrivals_.ring_bytes);
      break;
    case MessageKind::lease: arrivals_.leases.push_back(decode_lease(body)); break;
    case MessageKind::pulled:
      if (asked && !whole()) throw Error(ErrorCode::CorruptData, "parameters with gaps");
      arrivals_.oldest = std::min(arrivals_.oldest, header.sequence);
      arrivals_.newest = std::max(arrivals_.newest, header.sequence);
      if (std::exchange(asked, false)) ++arrivals_.pulled;
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
  if (why.code() == ErrorCode::PeerLost && stood_in_for_()) return;
  const std::scoped_lock lock(arrivals_.mutex);
  if (!arrivals_.failure && !arrivals_.finished) {
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
