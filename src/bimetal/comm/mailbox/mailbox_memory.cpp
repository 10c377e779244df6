// Messages whose parts lie in memory that their sender shares with this rank: news about that
// memory, and the parts, which are taken in as if they had come with their frames.
//
// Receives from any rank: they take the first message that comes.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bimetal/base/log.h"
#include "bimetal/base/wire.h"
#include "bimetal/comm/mailbox/mailbox.h"
#include "bimetal/comm/shm/segment.h"

namespace bimetal::comm {

net::FrameReceiver::Placement Mailbox::place_ring_word(Inbox& box, int peer,
                                                       const net::FrameHeader& header,
                                                       Section& section) {
  const bool offer = header.part == kOfferPart;
  if (header.payload_bytes != (offer ? kAddressBytes : 0)) {
    return refuse(peer, "a word about memory that makes no sense", section);
  }
  if (offer) {
    auto& payload = peers_[peer].current.emplace<RingOffer>();
    payload.bytes.resize(kAddressBytes);
    return {payload.bytes};
  }
  tell_ring(box, peer, header.part, section);
  return throw_away(peer, header);
}

void Mailbox::tell_ring(Inbox& box, int peer, std::uint32_t word, Section& section) {
  if (const auto listener = box.listener.lock()) {
    section.later([listener, peer, word] { listener->on_ring(peer, word); });
  }
}

/// A peer that is paused cannot say that it has freed slots, for that message is behind unread
/// ones: messages to it go over the connection from now on, lest both sides wait for each other.
void Mailbox::forgo_rings(int peer, Section& section) {
  for (auto& [group, box] : inboxes_) {
    if (box.rank_of.contains(peer)) tell_ring(box, peer, kRefusedPart, section);
  }
}

/// Without the lock: the system may take its time.
void Mailbox::answer_offer(int peer, std::uint32_t group, std::span<const std::byte> payload) {
  std::shared_ptr<MessageRing> ring;
  try {
    WireReader reader(payload);
    ring = std::make_shared<MessageRing>(MessageRing::open(read_address(reader)));
  } catch (const Error& error) {
    log(LogLevel::info, "long messages of rank {} come over the connection: {}", peer,
        error.what());
  }
  {
    Section section(*this);
    const auto found = inboxes_.find(group);
    if (found == inboxes_.end() || !found->second.rank_of.contains(peer)) ring = nullptr;
    if (ring) found->second.rings[peer] = ring;
  }
  say(peer, group, ring ? kOpenedPart : kRefusedPart);
}

void Mailbox::say(int peer, std::uint32_t group, std::uint32_t word) {
  mesh_.send(peer, ring_word(group, word), {}, [](const std::exception_ptr&) {});
}

/// The parts of a sender come in the order of its slots, and are taken in this order.
net::FrameReceiver::Placement Mailbox::take_placed(int peer, net::FrameHeader header) {
  const bool bare = header.payload_bytes == 0;
  header.part -= kPlacedPart;
  header.payload_bytes = bytes_of_part(header);
  std::shared_ptr<MessageRing> ring;
  Placement place;
  {
    Section section(*this);
    if (!bare) return refuse(peer, "a part in memory and more beside it", section);
    const auto found = inboxes_.find(header.group);
    if (found != inboxes_.end() && !found->second.failed) {
      const auto& rings = found->second.rings;
      if (const auto known = rings.find(peer); known != rings.end()) ring = known->second;
    } else if (removed_.contains(header.group) || found != inboxes_.end()) {
      section.later([this, peer, group = header.group] { say(peer, group, kFreedPart); });
      header.payload_bytes = 0;
      return throw_away(peer, header);
    }
    if (!ring || header.payload_bytes == 0) {
      return refuse(peer, "a part in memory that this rank knows nothing of", section);
    }
    place = place_data(peer, header, section);
    if (place.pause) return place;
  }
  std::ranges::copy(ring->next(place.bytes.size()), place.bytes.begin());
  on_payload(peer, header);
  say(peer, header.group, kFreedPart);
  return {};
}

void Mailbox::receive_from_anybody(const net::FrameHeader& expected, std::span<std::byte> into,
                                   std::function<void(int peer)> matched,
                                   std::function<void()> done) {
  const auto receive =
      std::make_shared<PostedReceive>(PostedReceive{into, expected, std::move(done)});
  receive->matched = std::move(matched);
  std::optional<int> sender;
  {
    Section section(*this);
    Inbox& box = inboxes_[expected.group];
    if (box.failed) {
      section.later(std::move(receive->done));
      return;
    }
    // A paused peer may be holding back the message.
    for (const auto& [peer, rank] : box.rank_of) resume(peer, section);
    sender = first_sender(box, expected.sequence);
    if (!sender) {
      receive->number = box.next_number++;
      box.from_anybody[expected.sequence].push_back(receive);
      check_senders(box, section);
      return;
    }
    receive->matched(*sender);
  }
  fill(*sender, receive);
}

/// The sender whose message of the tag has been here longest.
std::optional<int> Mailbox::first_sender(const Inbox& box, std::uint64_t tag) const {
  std::optional<int> sender;
  std::uint64_t number = 0;
  for (auto at = box.streams.lower_bound({true, tag, 0}); at != box.streams.end(); ++at) {
    const auto& [key, stream] = *at;
    if (key.sequence != tag) break;
    if (stream.arrived.empty()) continue;
    const auto arrived = stream.arrived.front().number;
    if (sender && arrived > number) continue;
    sender = key.peer;
    number = arrived;
  }
  return sender;
}

/// A frame of a stream is here. If it begins a message, and a receive from anybody has waited
/// longest, that becomes the stream's first.
void Mailbox::match(Inbox& box, const Stream::Key& key) {
  if (!key.point_to_point || box.from_anybody.empty()) return;
  const auto waiting = box.from_anybody.find(key.sequence);
  if (waiting == box.from_anybody.end()) return;
  const auto receive = waiting->second.front();
  auto& posted = box.streams[key].posted;
  if (!posted.empty()) {
    const auto& first = *posted.front();
    if (first.claimed > 0 || first.number < receive->number) return;
  }
  posted.push_front(receive);
  waiting->second.pop_front();
  if (waiting->second.empty()) box.from_anybody.erase(waiting);
  receive->matched(key.peer);
}

/// Nobody is left who could send.
void Mailbox::check_senders(Inbox& box, Section& section) {
  if (box.from_anybody.empty()) return;
  const bool left_alone = std::ranges::all_of(box.rank_of, [&](const auto& member) {
    return member.first == mesh_.rank() || box.departed.contains(member.first);
  });
  if (!left_alone) return;
  const auto& expected = box.from_anybody.begin()->second.front()->expected;
  report(box,
         {ErrorCode::PeerLost,
          fmt::format("all other ranks have left the group while rank {} waits for one of them in "
                      "{}",
                      mesh_.rank(), describe_numbered(expected)),
          std::nullopt},
         true, section);
}

}  // namespace bimetal::comm
