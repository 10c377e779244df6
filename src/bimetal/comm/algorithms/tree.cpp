#include "bimetal/comm/algorithms/tree.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <vector>

#include "bimetal/comm/parts.h"
#include "bimetal/comm/reduce/reduce_kernels.h"

namespace bimetal::comm {
namespace {

// Counting ranks from the root, a rank's parent is its number without the lowest set bit, and its
// children are its number with one lower bit set.
struct TreePlace {
  std::optional<int> parent;
  std::vector<int> children;  // nearest first
};

TreePlace place_in_tree(const Channel& channel, int root) {
  const int size = channel.size();
  const int number = (channel.rank() - root + size) % size;
  const auto rank_of = [&](int n) { return (n + root) % size; };
  TreePlace place;
  for (int bit = 1; bit < size; bit *= 2) {
    if (number & bit) {
      place.parent = rank_of(number ^ bit);
      break;
    }
    if ((number | bit) < size) place.children.push_back(rank_of(number | bit));
  }
  return place;
}

}  // namespace

void tree_broadcast(Channel& channel, std::span<std::byte> data, int root) {
  const auto [parent, children] = place_in_tree(channel, root);
  const auto parts = parts_of(data);
  std::vector<Channel::Ticket> tickets;
  if (parent) {
    for (const auto part : parts) tickets.push_back(channel.receive(*parent, part));
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parent) channel.wait(tickets[i]);
    // The farthest child has the most ranks below it: it goes first.
    for (auto child = children.rbegin(); child != children.rend(); ++child) {
      channel.send(*child, parts[i]);
    }
  }
  channel.wait_sent();
}

void tree_reduce(Channel& channel, std::span<std::byte> data, int root, DType dtype, ReduceOp op) {
  const auto [parent, children] = place_in_tree(channel, root);
  const auto parts = parts_of(data);
  std::vector<std::vector<std::span<std::byte>>> incoming;
  std::vector<std::vector<Channel::Ticket>> tickets(children.size());
  for (std::size_t c = 0; c < children.size(); ++c) {
    incoming.push_back(parts_of(channel.scratch(data.size())));
    for (const auto part : incoming[c]) tickets[c].push_back(channel.receive(children[c], part));
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (std::size_t c = 0; c < children.size(); ++c) {
      channel.wait(tickets[c][i]);
      accumulate(parts[i].data(), incoming[c][i].data(), parts[i].size() / size_of(dtype), dtype,
                 op);
    }
    if (parent) channel.send(*parent, parts[i]);
  }
  channel.wait_sent();
}

void tree_all_reduce(Channel& channel, std::span<std::byte> data, const Reduction& reduction) {
  tree_reduce(channel, data, 0, reduction.dtype, reduction.op);
  if (channel.rank() == 0) reduction.finish(data);
  tree_broadcast(channel, data, 0);
}

void recursive_doubling_all_reduce(Channel& channel, std::span<std::byte> data, DType dtype,
                                   ReduceOp op) {
  const PowerOfTwo layout(channel.size());
  const int rank = channel.rank();
  const std::size_t count = data.size() / size_of(dtype);

  if (layout.idle(rank)) {
    channel.send(rank + 1, data);
    channel.wait_sent();
    channel.wait(channel.receive(rank + 1, data));
    return;
  }

  // Each exchange receives into memory of its own and leaves its result there, so that sent data
  // stays as it is without waiting.
  const auto rounds = std::bit_width(static_cast<unsigned>(layout.active));
  std::span<std::byte> free = channel.scratch(rounds * data.size());
  std::span<std::byte> current = data;
  const auto combine_with = [&](int peer, bool peer_first) {
    const auto received = free.first(data.size());
    free = free.subspan(data.size());
    channel.wait(channel.receive(peer, received));
    // In one order on both sides: bits then agree even where an operation does not commute.
    if (peer_first) {
      accumulate(received.data(), current.data(), count, dtype, op);
    } else {
      accumulate_right(current.data(), received.data(), count, dtype, op);
    }
    current = received;
  };

  if (layout.paired(rank)) combine_with(rank - 1, true);
  const int position = layout.position_of(rank);
  for (int distance = 1; distance < layout.active; distance *= 2) {
    const int other = position ^ distance;
    channel.send(layout.rank_at(other), current);
    combine_with(layout.rank_at(other), other < position);
  }
  if (layout.paired(rank)) channel.send(rank - 1, current);
  channel.wait_sent();
  std::ranges::copy(current, data.begin());
}

namespace {

void receive(Channel& channel, int from, std::span<std::byte> into, const Combine& combine) {
  for (const auto part : parts_of(into)) channel.receive_part(from, part, combine);
}

// Elements [begin, end) of the message, halved again and again.
struct HalfRange {
  std::size_t begin, end;
  std::size_t middle() const { return begin + (end - begin) / 2; }
};

}  // namespace

void halving_doubling_all_reduce(Channel& channel, std::span<std::byte> data,
                                 const Reduction& reduction) {
  const PowerOfTwo layout(channel.size());
  const int rank = channel.rank();
  if (layout.idle(rank)) {
    channel.send(rank + 1, data);
    channel.wait_sent();
    receive(channel, rank + 1, data, {});
    channel.wait_all();
    return;
  }
  if (layout.paired(rank)) {
    receive(channel, rank - 1, data, reduction.combine());
    channel.wait_all();
  }

  const std::size_t element = size_of(reduction.dtype);
  const auto bytes = [&](const HalfRange& range) {
    return data.subspan(range.begin * element, (range.end - range.begin) * element);
  };
  const int position = layout.position_of(rank);
  // Each halving is undone by the doubling with the same partner.
  struct Step {
    int partner;
    HalfRange kept, given;
  };
  std::vector<Step> steps;
  HalfRange own{0, data.size() / element};
  for (int distance = layout.active / 2; distance > 0; distance /= 2) {
    const HalfRange low{own.begin, own.middle()}, high{own.middle(), own.end};
    const bool keeps_low = (position & distance) == 0;
    steps.push_back(
        {layout.rank_at(position ^ distance), keeps_low ? low : high, keeps_low ? high : low});
    own = steps.back().kept;
    channel.send(steps.back().partner, bytes(steps.back().given));
    receive(channel, steps.back().partner, bytes(own), reduction.combine());
    channel.wait_all();
  }
  reduction.finish(bytes(own));
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    channel.send(step->partner, bytes(step->kept));
    receive(channel, step->partner, bytes(step->given), {});
    channel.wait_all();
  }
  if (layout.paired(rank)) {
    channel.send(rank - 1, data);
    channel.wait_all();
  }
}

// The data that a rank holds doubles in each step. It lies in the order of the ring, from this rank
// on.
void doubling_all_gather(Channel& channel, const std::vector<std::span<std::byte>>& segments) {
  const std::size_t size = segments.size(), bytes = segments[0].size();
  const auto all = channel.scratch(size * bytes);
  std::ranges::copy(segments[static_cast<std::size_t>(channel.rank())], all.begin());
  for (std::size_t here = 1; here < size; here *= 2) {
    const std::size_t more = std::min(here, size - here) * bytes;
    const int distance = static_cast<int>(here);
    const auto arrived =
        channel.receive(channel.neighbour(distance), all.subspan(here * bytes, more));
    channel.send(channel.neighbour(-distance), all.first(more));
    channel.wait(arrived);
  }
  channel.wait_sent();
  for (std::size_t steps = 0; steps < size; ++steps) {
    const auto rank = static_cast<std::size_t>(channel.neighbour(static_cast<int>(steps)));
    std::ranges::copy(all.subspan(steps * bytes, bytes), segments[rank].begin());
  }
}

bool doubling_suits(const std::vector<std::span<std::byte>>& segments) {
  constexpr std::size_t kShort = 4096;
  const std::size_t bytes = segments[0].size();
  return segments.size() > 2 && bytes <= kShort &&
         std::ranges::all_of(segments, [&](const auto& one) { return one.size() == bytes; });
}

void dissemination_barrier(Channel& channel) {
  for (int distance = 1; distance < channel.size(); distance *= 2) {
    const auto heard = channel.receive(channel.neighbour(-distance), {});
    channel.send(channel.neighbour(distance), {});
    channel.wait(heard);
  }
  channel.wait_sent();
}

}  // namespace bimetal::comm
