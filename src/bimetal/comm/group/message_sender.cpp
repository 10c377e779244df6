#include "bimetal/comm/group/message_sender.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"
#include "bimetal/comm/call.h"
#include "bimetal/comm/shm/segment.h"

namespace bimetal::comm {

MessageSender::MessageSender(std::uint32_t group, const std::vector<int>& members, net::Mesh& mesh)
    : group_(group), mesh_(mesh) {
  for (const int member : members) paths_.try_emplace(member);
}

void MessageSender::use_memory(const std::vector<int>& peers) {
  for (const int peer : peers) {
    auto& path = paths_.at(peer);
    std::lock_guard lock(path.mutex);
    path.memory = Memory::not_yet;
  }
}

void MessageSender::send(int peer, const net::FrameHeader& header,
                         std::span<const std::byte> payload, net::SendDone done) {
  auto& path = paths_.at(peer);
  std::lock_guard lock(path.mutex);
  path.waiting.push_back({header, payload, std::move(done)});
  pump(peer, path);
}

void MessageSender::pump(int peer, Path& path) {
  while (!path.waiting.empty()) {
    auto& next = path.waiting.front();
    const bool is_long = message_bytes(next.header) >= MessageRing::kLongBytes;
    if (is_long && path.memory == Memory::not_yet) offer(peer, path);
    if (!is_long || path.memory != Memory::open) {
      mesh_.send(peer, next.header, next.payload, std::move(next.done));
    } else if (path.free > 0) {
      put(peer, path, next);
    } else {
      return;  // the receiver will free one
    }
    path.waiting.pop_front();
  }
}

/// Until the answer is there messages go as frames.
void MessageSender::offer(int peer, Path& path) try {
  path.memory = Memory::none;
  path.ring.emplace(MessageRing::make());
  WireWriter writer;
  write_address(writer, path.ring->address());
  const auto payload = std::make_shared<const std::vector<std::byte>>(std::move(writer).take());
  path.memory = Memory::offered;
  mesh_.send(peer, ring_word(group_, kOfferPart), *payload, [payload](std::exception_ptr) {});
} catch (const Error& error) {
  log(LogLevel::info, "long messages to rank {} go over the connection: {}", peer, error.what());
}

void MessageSender::put(int peer, Path& path, Waiting& part) {
  std::ranges::copy(part.payload, path.ring->next(part.payload.size()).begin());
  --path.free;
  auto header = part.header;
  header.part |= kPlacedPart;
  mesh_.send(peer, header, {}, std::move(part.done));
}

void MessageSender::on_ring(int peer, std::uint32_t word) {
  auto& path = paths_.at(peer);
  std::lock_guard lock(path.mutex);
  if (word == kOpenedPart && path.memory == Memory::offered) {
    path.ring->forget_name();
    path.memory = Memory::open;
    path.free = MessageRing::kSlots;
  } else if (word == kFreedPart && path.memory == Memory::open) {
    path.free = std::min(path.free + 1, MessageRing::kSlots);
  } else if (word == kRefusedPart) {
    path.memory = Memory::none;
    path.ring.reset();
  }
  pump(peer, path);
}

void MessageSender::give_up() {
  for (const auto& [peer, path] : paths_) on_ring(peer, kRefusedPart);
}

}  // namespace bimetal::comm
