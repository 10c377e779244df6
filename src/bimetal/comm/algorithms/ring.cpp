#include "bimetal/comm/algorithms/ring.h"

#include <algorithm>
#include <utility>

#include "bimetal/comm/parts.h"
#include "bimetal/comm/reduce_kernels.h"

namespace bimetal::comm {
namespace {

// A message that is received in parts, so that each can be used while the next is under way.
class PartedReceive {
 public:
  PartedReceive() = default;
  PartedReceive(Channel& channel, int from, std::span<std::byte> into)
      : channel_(&channel), parts_(parts_of(into)) {
    for (const auto part : parts_) tickets_.push_back(channel.receive(from, part));
  }

  std::size_t size() const { return parts_.size(); }

  std::span<std::byte> wait(std::size_t part) {
    channel_->wait(tickets_[part]);
    return parts_[part];
  }

 private:
  Channel* channel_ = nullptr;
  std::vector<std::span<std::byte>> parts_;
  std::vector<Channel::Ticket> tickets_;
};

std::size_t longest(const Segments& segments) {
  return std::ranges::max(segments, {}, &std::span<std::byte>::size).size();
}

}  // namespace

void ring_reduce_scatter(Channel& channel, const Segments& segments, DType dtype, ReduceOp op) {
  const int steps = channel.size() - 1;
  if (steps == 0) return;
  const int left = channel.neighbour(-1), right = channel.neighbour(1);
  const std::size_t room = longest(segments);
  const std::span<std::byte> scratch[] = {channel.scratch(room), channel.scratch(room)};
  const auto segment = [&](int step) { return segments[channel.neighbour(-2 - step)]; };
  const auto receive = [&](int step) {
    return PartedReceive(channel, left, scratch[step % 2].first(segment(step).size()));
  };

  // Segment s starts at rank s+1 and ends, after a round trip, at rank s. What the next step
  // receives has its memory before this step's is used up, so that the line never waits.
  channel.send(right, segments[left]);
  auto next = receive(0);
  for (int step = 0; step < steps; ++step) {
    const bool last = step + 1 == steps;
    auto incoming = std::exchange(next, last ? PartedReceive() : receive(step + 1));
    const auto own = parts_of(segment(step));
    for (std::size_t i = 0; i < own.size(); ++i) {
      accumulate(own[i].data(), incoming.wait(i).data(), own[i].size() / size_of(dtype), dtype, op);
      if (!last) channel.send(right, own[i]);
    }
  }
  channel.wait_sent();
}

void ring_all_gather(Channel& channel, const Segments& segments) {
  const int steps = channel.size() - 1;
  if (steps == 0) return;
  const int left = channel.neighbour(-1), right = channel.neighbour(1);

  std::vector<PartedReceive> incoming;
  for (int step = 0; step < steps; ++step) {
    incoming.emplace_back(channel, left, segments[channel.neighbour(-1 - step)]);
  }
  channel.send(right, segments[channel.rank()]);
  for (int step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < incoming[step].size(); ++i) {
      const auto part = incoming[step].wait(i);
      if (step + 1 < steps) channel.send(right, part);
    }
  }
  channel.wait_sent();
}

}  // namespace bimetal::comm
