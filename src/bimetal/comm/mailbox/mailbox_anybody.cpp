// Receives of messages whose sender is not named: whoever's message comes first has it.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bimetal/comm/mailbox/mailbox.h"

namespace bimetal::comm {

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
    // What a paused peer holds back may be the message.
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

/// Whose message of the tag has been here longest.
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
