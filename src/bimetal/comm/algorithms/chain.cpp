#include "bimetal/comm/algorithms/chain.h"

#include <algorithm>

#include "bimetal/comm/parts.h"

namespace bimetal::comm {
namespace {

// Where this rank stands: its neighbours towards the root and away from it, -1 for none.
struct Place {
  int towards = -1, away = -1;

  Place(const Channel& channel, int root) {
    const int size = channel.size();
    const int number = (channel.rank() - root + size) % size;
    if (number > 0) towards = channel.neighbour(-1);
    if (number + 1 < size) away = channel.neighbour(1);
  }
};

// The way of the first part to the end is time in which the end has nothing to do: an eighth of a
// message at most.
std::size_t part_bytes_for(std::size_t bytes, int ranks) {
  constexpr std::size_t kLeast = std::size_t{32} << 10;
  constexpr std::size_t kAligned = 4096;
  const std::size_t share = bytes / 8 / static_cast<std::size_t>(ranks);
  return std::clamp(share / kAligned * kAligned, kLeast, kPartBytes);
}

}  // namespace

bool chain_suits(std::size_t bytes, int ranks) {
  // Some parts to every rank, or the steps' latency counts.
  return ranks > 2 && bytes >= (std::size_t{64} << 10) * static_cast<std::size_t>(ranks);
}

void chain_broadcast(Channel& channel, std::span<std::byte> data, int root) {
  const Place place(channel, root);
  for (const auto part : parts_of(data, part_bytes_for(data.size(), channel.size()))) {
    if (place.towards >= 0) {
      channel.receive_part(place.towards, part, {}, place.away);
    } else if (place.away >= 0) {
      channel.send_part(place.away, part);
    }
  }
  channel.wait_all();
}

void chain_reduce(Channel& channel, std::span<std::byte> data, int root,
                  const Reduction& reduction) {
  const Place place(channel, root);
  const auto combine = channel.rank() == root ? reduction.combine_last() : reduction.combine();
  for (const auto part : parts_of(data, part_bytes_for(data.size(), channel.size()))) {
    if (place.away >= 0) {
      channel.receive_part(place.away, part, combine, place.towards);
    } else if (place.towards >= 0) {
      channel.send_part(place.towards, part);
    }
  }
  channel.wait_all();
}

}  // namespace bimetal::comm
