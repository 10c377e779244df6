#include "bimetal/parallel/server/server_link.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>

#include "bimetal/base/error.h"

namespace bimetal::parallel::server {

std::span<std::byte> ServerLink::place(const net::FrameHeader& header) {
  const bool known = static_cast<MessageKind>(header.operation) == MessageKind::piece &&
                     header.part < plan_.pieces.size() &&
                     plan_.pieces[header.part].server == shard_;
  if (!known) throw Error(ErrorCode::CorruptData, "tensors that have no place here");
  const Piece& piece = plan_.pieces[header.part];
  const auto& tensor = host_[piece.tensor];
  return {static_cast<std::byte*>(tensor.data_ptr()) + piece.offset * tensor.element_size(),
          static_cast<std::size_t>(piece.count * tensor.element_size())};
}

void ServerLink::on_message(const net::FrameHeader& header, std::span<const std::byte> body) {
  const auto kind = static_cast<MessageKind>(header.operation);
  if (kind == MessageKind::piece) return;
  const std::scoped_lock lock(arrivals_.mutex);
  switch (kind) {
    case MessageKind::welcome:
      if (arrivals_.number < 0) arrivals_.number = decode_welcome(body).number;
      ++arrivals_.welcomes;
      break;
    case MessageKind::lease: arrivals_.leases.push_back(decode_lease(body)); break;
    case MessageKind::pulled:
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
