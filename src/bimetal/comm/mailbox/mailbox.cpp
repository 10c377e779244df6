#include "bimetal/comm/mailbox/mailbox.h"

#include <fmt/format.h>

#include <utility>

namespace bimetal::comm {

Mailbox::Mailbox(net::Mesh& mesh, std::size_t budget_per_peer)
    : mesh_(mesh), budget_(budget_per_peer), peers_(mesh.size()) {}

void Mailbox::add_group(std::uint32_t group, const std::vector<int>& members,
                        std::weak_ptr<GroupListener> listener) {
  Section section(*this);
  Inbox& box = inboxes_[group];
  box.listener = std::move(listener);
  for (int rank = 0; rank < static_cast<int>(members.size()); ++rank) {
    box.rank_of[members[rank]] = rank;
  }
  // Messages that strangers to the group sent before anybody could tell.
  std::erase_if(box.streams, [&](const auto& entry) {
    const auto& [key, stream] = entry;
    if (box.rank_of.contains(key.peer)) return false;
    for (const auto& frame : stream.arrived) release(key.peer, frame, section);
    return true;
  });
  std::erase_if(box.early_signs,
                [&](const auto& entry) { return !box.rank_of.contains(entry.second.peer); });
  if (box.early_failure) report(box, *box.early_failure, true, section);
  for (const int member : members) {
    resume(member, section);
    if (peers_[member].lost && !box.departed.contains(member)) {
      report(box, *peers_[member].lost, true, section);
    }
  }
}

void Mailbox::fail_group(std::uint32_t group) {
  Section section(*this);
  const auto found = inboxes_.find(group);
  if (found == inboxes_.end()) return;  // gone meanwhile
  Inbox& box = found->second;
  box.failed = true;
  // Memory that the mesh is writing to is given up when the write has ended: see landed and
  // on_lost.
  std::set<const PostedReceive*> busy;
  for (const Peer& peer : peers_) {
    const auto* current = std::get_if<std::shared_ptr<PostedReceive>>(&peer.current);
    if (!current || (*current)->expected.group != group) continue;
    (*current)->cancelled = true;
    busy.insert(current->get());
  }
  for (auto& [key, stream] : box.streams) {
    for (const auto& receive : stream.posted) {
      if (!busy.contains(receive.get())) section.later(std::move(receive->done));
    }
  }
  for (const auto& [tag, receives] : box.from_anybody) {
    for (const auto& receive : receives) section.later(std::move(receive->done));
  }
  box.from_anybody.clear();
  drop_frames(box, section);
}

void Mailbox::remove_group(std::uint32_t group, std::vector<std::byte> last_words) {
  Section section(*this);
  Inbox& box = inboxes_[group];
  drop_frames(box, section);
  Removed& gone = removed_[group];
  for (const auto& [peer, rank] : box.rank_of) gone.members.insert(peer);
  gone.last_words = std::make_shared<const std::vector<std::byte>>(std::move(last_words));
  inboxes_.erase(group);
}

void Mailbox::drop_frames(Inbox& box, Section& section) {
  for (const auto& [key, stream] : box.streams) {
    for (const auto& frame : stream.arrived) release(key.peer, frame, section);
  }
  box.streams.clear();
  box.early_signs.clear();
  for (const auto& [peer, rank] : box.rank_of) resume(peer, section);
}

void Mailbox::open_call(std::uint32_t group, const Call& call) {
  Section section(*this);
  Inbox& box = inboxes_[group];
  box.calls.open(call);
  for (auto at = box.streams.lower_bound({false, call.sequence, 0}); at != box.streams.end();
       ++at) {
    const auto& [key, stream] = *at;
    if (key.point_to_point || key.sequence != call.sequence) break;
    if (!stream.arrived.empty()) {
      belongs_to_call(box, key.peer, stream.arrived.front().header, section);
    }
  }
  const auto [first, last] = box.early_signs.equal_range(call.sequence);
  for (auto at = first; at != last; ++at) {
    const auto& [peer, header] = at->second;
    if (belongs_to_call(box, peer, header, section)) take_sign(box, peer, header, section);
  }
  box.early_signs.erase(first, last);
}

void Mailbox::finish_call(std::uint32_t group, std::uint64_t sequence) {
  Section section(*this);
  Inbox& box = inboxes_[group];
  box.calls.finish(sequence);
  auto at = box.streams.lower_bound({false, sequence, 0});
  while (at != box.streams.end() && !at->first.point_to_point && at->first.sequence == sequence) {
    for (const auto& frame : at->second.arrived) {
      // More than the call needed. Checked again, now as a frame for a finished call, it is
      // reported.
      belongs_to_call(box, at->first.peer, frame.header, section);
      release(at->first.peer, frame, section);
    }
    at = box.streams.erase(at);
  }
}

std::optional<Failure> Mailbox::departed(const net::FrameHeader& expected, int peer) {
  Section section(*this);
  if (!inboxes_[expected.group].departed.contains(peer)) return std::nullopt;
  return departure(peer, expected);
}

void Mailbox::receive(int peer, const net::FrameHeader& expected, std::span<std::byte> into,
                      std::function<void()> done, Combine combine) {
  const auto receive =
      std::make_shared<PostedReceive>(PostedReceive{into, expected, std::move(done)});
  receive->combine = std::move(combine);
  fill(peer, receive);
}

/// Fills the receive with the data that is there already, then posts it for the rest.
void Mailbox::fill(int peer, const std::shared_ptr<PostedReceive>& receive) {
  const auto& expected = receive->expected;
  const auto key = Stream::key_of(peer, expected);
  std::optional<ArrivedFrame> frame;
  for (;;) {
    // Taken in without the lock: nobody else knows of this receive yet.
    if (frame) {
      receive->take(receive->claimed, frame->payload);
      receive->claimed = receive->landed += frame->payload.size();
    }
    Section section(*this);
    Inbox& box = inboxes_[expected.group];
    if (box.failed || (frame && receive->full())) {
      section.later(std::move(receive->done));
      return;
    }
    resume(peer, section);
    Stream& stream = box.streams[key];
    if (stream.arrived.empty() ||
        !belongs_to_receive(box, *receive, peer, stream.arrived.front().header, section)) {
      receive->number = box.next_number++;
      stream.posted.push_back(receive);
      if (box.departed.contains(peer)) report(box, departure(peer, expected), true, section);
      return;
    }
    frame = std::move(stream.arrived.front());
    stream.arrived.pop_front();
    if (stream.arrived.empty()) box.streams.erase(key);
    release(peer, *frame, section);
  }
}

bool Mailbox::belongs_to_call(Inbox& box, int peer, const net::FrameHeader& header,
                              Section& section) {
  const auto standing = box.calls.standing(header.sequence);
  if (standing == CallLog::Standing::future) return true;
  if (standing == CallLog::Standing::forgotten) {
    // A rank may wait long in a call of which another was through at once.
    if (header.part >= kAnswerPart) return false;
    report(box,
           {ErrorCode::CallMismatch,
            fmt::format("rank {} is still at {}, which is long past on rank {}", peer,
                        describe_numbered(header), mesh_.rank()),
            peer},
           true, section);
    return false;
  }
  const auto expected =
      box.calls.call(header.sequence).header_from(header.group, box.rank_of.at(peer));
  if (!same_call(header, expected)) {
    report(box, mismatch(peer, header, mesh_.rank(), expected), true, section);
    return false;
  }
  if (standing == CallLog::Standing::finished && header.part < kAnswerPart) {
    report(box,
           {ErrorCode::CorruptData,
            fmt::format("rank {} sent more than rank {} needed for {}", peer, mesh_.rank(),
                        describe_numbered(header)),
            peer},
           true, section);
    return false;
  }
  return true;
}

bool Mailbox::belongs_to_receive(Inbox& box, const PostedReceive& receive, int peer,
                                 const net::FrameHeader& header, Section& section) {
  if (!same_call(header, receive.expected)) {
    report(box, mismatch(peer, header, mesh_.rank(), receive.expected), true, section);
    return false;
  }
  if (header.payload_bytes > receive.into.size() - receive.claimed) {
    report(box,
           {ErrorCode::CorruptData,
            fmt::format("rank {} sent {} bytes where rank {} had room for {}, in {}", peer,
                        header.payload_bytes, mesh_.rank(), receive.into.size() - receive.claimed,
                        describe_numbered(header)),
            peer},
           true, section);
    return false;
  }
  return true;
}

void Mailbox::report(Inbox& box, Failure failure, bool tell_others, Section& section) {
  const auto listener = box.listener.lock();
  if (!listener) {
    if (!box.early_failure) box.early_failure = std::move(failure);
    return;
  }
  section.later([listener, failure = std::move(failure), tell_others] {
    listener->on_failure(failure, tell_others);
  });
}

Failure Mailbox::departure(int peer, const net::FrameHeader& expected) const {
  return {ErrorCode::PeerLost,
          fmt::format("rank {} ({}) has left the group while rank {} waits for it in {}", peer,
                      mesh_.host_of(peer), mesh_.rank(), describe_numbered(expected)),
          peer};
}

void Mailbox::resume(int peer, Section& section) {
  if (!std::exchange(peers_[peer].paused, false)) return;
  section.later([this, peer] { mesh_.resume(peer); });
}

}  // namespace bimetal::comm
