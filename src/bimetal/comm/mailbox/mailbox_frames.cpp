// The mailbox as the mesh sees it: headers, payloads and losses.
#include <fmt/format.h>

#include <utility>

#include "bimetal/base/log.h"
#include "bimetal/comm/failure.h"
#include "bimetal/comm/mailbox/mailbox.h"

namespace bimetal::comm {
namespace {

// The cost of keeping a frame besides its payload, so that empty frames count too.
constexpr std::size_t kFrameOverhead = 256;

std::size_t cost_of(std::size_t payload_bytes) {
  return payload_bytes + kFrameOverhead;
}

}  // namespace

net::FrameReceiver::Placement Mailbox::on_header(int peer, const net::FrameHeader& header) {
  if (is_placed(header)) return take_placed(peer, header);
  Section section(*this);
  switch (header.kind) {
    case net::FrameKind::Data: return place_data(peer, header, section);
    case net::FrameKind::Abort: return place_abort(peer, header, section);
    case net::FrameKind::Heartbeat:
    case net::FrameKind::Goodbye:
    case net::FrameKind::Loss: break;  // the mesh's own
  }
  if (header.payload_bytes != 0) return refuse(peer, "a heartbeat with a payload", section);
  return throw_away(peer, header);
}

net::FrameReceiver::Placement Mailbox::place_abort(int peer, const net::FrameHeader& header,
                                                   Section& section) {
  if (header.payload_bytes > kMaxAbortBytes) return refuse(peer, "an oversized abort", section);
  auto& payload = peers_[peer].current.emplace<AbortPayload>();
  payload.bytes.resize(header.payload_bytes);
  return {payload.bytes};
}

net::FrameReceiver::Placement Mailbox::place_data(int peer, const net::FrameHeader& header,
                                                  Section& section) {
  if (header.payload_bytes > kMaxPartBytes) return refuse(peer, "an oversized part", section);
  if (removed_.contains(header.group)) return throw_away(peer, header);
  Inbox& box = inboxes_[header.group];
  if (box.failed) return throw_away(peer, header);
  if (box.exists() && !box.rank_of.contains(peer)) {
    return refuse(peer, "a frame of a group that it is no member of", section);
  }
  if (is_ring_word(header)) return place_ring_word(box, peer, header, section);
  const auto key = Stream::key_of(peer, header);
  if (!key.point_to_point && !belongs_to_call(box, peer, header, section)) {
    return throw_away(peer, header);
  }
  if (header.part >= kAnswerPart) {
    take_sign(box, peer, header, section);
    return throw_away(peer, header);
  }
  match(box, key);
  const auto found = box.streams.find(key);
  if (found == box.streams.end() || found->second.posted.empty()) {
    const auto place = keep(peer, header);
    if (place.pause) forgo_rings(peer, section);
    return place;
  }
  const auto receive = found->second.posted.front();
  if (!belongs_to_receive(box, *receive, peer, header, section)) return throw_away(peer, header);
  Peer& from = peers_[peer];
  from.current = receive;
  from.offset = receive->claimed;
  box.claim(found, header.payload_bytes);
  if (!receive->combine) return {receive->into.subspan(from.offset, header.payload_bytes)};
  if (from.staging.size() < header.payload_bytes) from.staging.resize(header.payload_bytes);
  return {std::span(from.staging).first(header.payload_bytes)};
}

net::FrameReceiver::Placement Mailbox::throw_away(int peer, const net::FrameHeader& header) {
  Peer& from = peers_[peer];
  from.current = ThrownAway{};
  if (from.sink.size() < header.payload_bytes) from.sink.resize(header.payload_bytes);
  return {std::span(from.sink).first(header.payload_bytes)};
}

net::FrameReceiver::Placement Mailbox::keep(int peer, const net::FrameHeader& header) {
  Peer& from = peers_[peer];
  if (from.buffered > 0 && from.buffered + cost_of(header.payload_bytes) > budget_) {
    from.paused = true;
    return {{}, true};
  }
  from.buffered += cost_of(header.payload_bytes);
  auto& frame = from.current.emplace<ArrivedFrame>(ArrivedFrame{header, {}});
  frame.payload.resize(header.payload_bytes);
  return {frame.payload};
}

net::FrameReceiver::Placement Mailbox::refuse(int peer, const std::string& what, Section& section) {
  section.later([this, peer, what] {
    log(LogLevel::error, "rank {} ({}) sent {}: its connection is closed", peer,
        mesh_.host_of(peer), what);
    mesh_.drop(peer);
  });
  return {{}, true};
}

void Mailbox::on_payload(int peer, const net::FrameHeader& header) {
  combine_staged(peer, header);
  Section section(*this);
  auto current = std::exchange(peers_[peer].current, ThrownAway{});
  if (auto* receive = std::get_if<std::shared_ptr<PostedReceive>>(&current)) {
    landed(*receive, header.payload_bytes, section);
  } else if (auto* frame = std::get_if<ArrivedFrame>(&current)) {
    take_frame(peer, std::move(*frame), section);
  } else if (auto* abort = std::get_if<AbortPayload>(&current)) {
    take_abort(peer, header.group, abort->bytes, section);
  } else if (auto* offer = std::get_if<RingOffer>(&current)) {
    section.later([this, peer, group = header.group, bytes = std::move(offer->bytes)] {
      answer_offer(peer, group, bytes);
    });
  }
}

/// Without the lock, as it takes long; the receive stays the peer's current one meanwhile, so that
/// a failing group leaves its memory alone until this is over.
void Mailbox::combine_staged(int peer, const net::FrameHeader& header) {
  std::shared_ptr<PostedReceive> receive;
  {
    std::lock_guard lock(mutex_);
    const auto* current = std::get_if<std::shared_ptr<PostedReceive>>(&peers_[peer].current);
    if (!current || !(*current)->combine) return;
    receive = *current;
  }
  // This peer's staging and offset change in on_header alone, which this thread calls.
  receive->take(peers_[peer].offset, std::span(peers_[peer].staging).first(header.payload_bytes));
}

void Mailbox::landed(const std::shared_ptr<PostedReceive>& receive, std::size_t bytes,
                     Section& section) {
  receive->landed += bytes;
  if (receive->cancelled || receive->full()) section.later(std::move(receive->done));
}

void Mailbox::take_frame(int peer, ArrivedFrame frame, Section& section) {
  const auto& header = frame.header;
  const auto at = inboxes_.find(header.group);
  if (at == inboxes_.end() || at->second.failed) return release(peer, frame, section);
  Inbox& box = at->second;
  const auto key = Stream::key_of(peer, header);
  // The call may have begun, and its receive been posted, while the payload was arriving.
  if (!key.point_to_point && !belongs_to_call(box, peer, header, section)) {
    return release(peer, frame, section);
  }
  match(box, key);
  const auto found = box.streams.try_emplace(key).first;
  if (found->second.posted.empty()) {
    frame.number = box.next_number++;
    found->second.arrived.push_back(std::move(frame));
    return;
  }
  release(peer, frame, section);
  const auto receive = found->second.posted.front();
  if (!belongs_to_receive(box, *receive, peer, header, section)) return;
  receive->take(receive->claimed, frame.payload);
  box.claim(found, frame.payload.size());
  landed(receive, frame.payload.size(), section);
}

void Mailbox::take_sign(Inbox& box, int peer, const net::FrameHeader& header, Section& section) {
  const auto standing = box.calls.standing(header.sequence);
  if (standing == CallLog::Standing::future) {
    // One sign per peer is sent for a call; more than a stray number of them is no honest peer's.
    if (box.early_signs.size() < CallLog::kRemembered * peers_.size()) {
      box.early_signs.insert({header.sequence, {peer, header}});
    }
    return;
  }
  if (standing == CallLog::Standing::finished && header.part == kProbePart) {
    // The peer still waits in this call: it should know that this rank is not to blame.
    auto answer = box.calls.call(header.sequence).header_to(header.group, box.rank_of.at(peer));
    answer.part = kAnswerPart;
    section.later(
        [this, peer, answer] { mesh_.send(peer, answer, {}, [](std::exception_ptr) {}); });
  }
  if (const auto listener = box.listener.lock()) {
    section.later([listener, peer, header] { listener->on_sign(peer, header.sequence); });
  }
}

void Mailbox::take_abort(int peer, std::uint32_t group, std::span<const std::byte> payload,
                         Section& section) {
  if (removed_.contains(group)) return;
  Inbox& box = inboxes_[group];
  if (box.failed || (box.exists() && !box.rank_of.contains(peer))) return;
  try {
    auto message = decode_abort(payload);
    if (message.failure) {
      // Passed on, for those that the peer itself cannot reach any more.
      report(box, std::move(*message.failure), true, section);
    } else {
      take_farewell(box, peer, section);
    }
  } catch (const Error& error) {
    refuse(peer, error.what(), section);
  }
}

void Mailbox::take_farewell(Inbox& box, int peer, Section& section) {
  box.departed.insert(peer);
  tell_ring(box, peer, kRefusedPart, section);  // nothing waits for a slot any more
  for (const auto& [key, stream] : box.streams) {
    if (key.peer != peer || stream.posted.empty()) continue;
    report(box, departure(peer, stream.posted.front()->expected), true, section);
    return;
  }
  check_senders(box, section);
}

void Mailbox::on_lost(int peer, const Error& error) {
  Section section(*this);
  Peer& from = peers_[peer];
  from.lost = Failure{error.code(), error.what(), peer};
  for (auto& [group, box] : inboxes_) {
    if (box.exists() && box.rank_of.contains(peer) && !box.departed.contains(peer)) {
      report(box, *from.lost, true, section);
    }
  }
  // After the reports: a thread that waits for this receive must find its group failed.
  auto current = std::exchange(from.current, ThrownAway{});
  if (auto* receive = std::get_if<std::shared_ptr<PostedReceive>>(&current)) {
    if ((*receive)->cancelled || (*receive)->claimed == (*receive)->into.size()) {
      section.later(std::move((*receive)->done));
    }
  }
}

/// A peer that this rank was not connected with has not heard which groups it has left since.
void Mailbox::on_open(int peer) {
  Section section(*this);
  for (const auto& [group, gone] : removed_) {
    if (!gone.members.contains(peer)) continue;
    section.later([this, peer, header = abort_header(group), words = gone.last_words] {
      mesh_.send(peer, header, *words, [words](std::exception_ptr) {});
    });
  }
}

void Mailbox::release(int peer, const ArrivedFrame& frame, Section& section) {
  peers_[peer].buffered -= cost_of(frame.header.payload_bytes);
  resume(peer, section);
}

}  // namespace bimetal::comm
