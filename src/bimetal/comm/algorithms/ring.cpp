#include "bimetal/comm/algorithms/ring.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/comm/algorithms/direct.h"
#include "bimetal/comm/algorithms/tree.h"
#include "bimetal/comm/parts.h"

namespace bimetal::comm {
namespace {

// The messages on the ring of one call. A message posted here is sent on when it has landed, and so
// in the order of the postings.
class Ring {
 public:
  Ring(Channel& channel, const Segments& segments)
      : channel_(channel),
        segments_(segments),
        left_(channel.neighbour(-1)),
        right_(channel.neighbour(1)),
        part_bytes_(
            part_bytes_for(std::ranges::max(segments, {}, &std::span<std::byte>::size).size())) {}

  /// Segment of the rank so many steps to the right.
  std::span<std::byte> segment(int steps) const { return segments_[channel_.neighbour(steps)]; }

  void send(std::span<std::byte> segment) {
    for (const auto part : parts_of(segment, part_bytes_)) channel_.send_part(right_, part);
  }

  void receive(std::span<std::byte> segment, const Combine& combine, bool send_on) {
    for (const auto part : parts_of(segment, part_bytes_)) {
      channel_.receive_part(left_, part, combine, send_on ? right_ : -1);
    }
  }

  int steps() const { return channel_.size() - 1; }

 private:
  // Some parts to a segment, so that a step need not wait for all of it, but not so small that the
  // cost of each part by itself would count.
  static std::size_t part_bytes_for(std::size_t segment_bytes) {
    constexpr std::size_t kLeast = std::size_t{32} << 10;
    constexpr std::size_t kAligned = 4096;
    const std::size_t quarter = segment_bytes / 4 / kAligned * kAligned;
    return std::clamp(quarter, kLeast, kPartBytes);
  }

  Channel& channel_;
  const Segments& segments_;
  const int left_, right_;
  const std::size_t part_bytes_;
};

// Segment s starts at rank s+1 and ends, after a round trip, at rank s.
void post_reduce_scatter(Ring& ring, const Reduction& reduction, bool send_last_on) {
  ring.send(ring.segment(-1));
  for (int step = 0; step < ring.steps(); ++step) {
    const bool last = step + 1 == ring.steps();
    ring.receive(ring.segment(-2 - step), last ? reduction.combine_last() : reduction.combine(),
                 !last || send_last_on);
  }
}

void post_all_gather(Ring& ring) {
  for (int step = 0; step < ring.steps(); ++step) {
    ring.receive(ring.segment(-1 - step), {}, step + 1 < ring.steps());
  }
}

}  // namespace

Segments even_segments(std::span<std::byte> data, int n, DType dtype) {
  const std::size_t count = data.size() / size_of(dtype);
  const auto pieces = static_cast<std::size_t>(n);
  Segments segments;
  for (std::size_t i = 0; i < pieces; ++i) {
    const std::size_t elements = count / pieces + (i < count % pieces ? 1 : 0);
    segments.push_back(data.first(elements * size_of(dtype)));
    data = data.subspan(segments.back().size());
  }
  return segments;
}

void ring_reduce_scatter(Channel& channel, const Segments& segments, const Reduction& reduction) {
  if (channel.size() == 1) return reduction.finish(segments[0]);
  Ring ring(channel, segments);
  post_reduce_scatter(ring, reduction, false);
  channel.wait_all();
}

void ring_all_gather(Channel& channel, const Segments& segments) {
  if (channel.size() == 1) return;
  Ring ring(channel, segments);
  ring.send(ring.segment(0));
  post_all_gather(ring);
  channel.wait_all();
}

void ring_all_gather_bytes(Channel& channel, std::span<const std::byte> own, Gathered& all) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::ptrdiff_t>::max();
  const auto ranks = static_cast<std::size_t>(channel.size());
  const std::uint64_t length = own.size();
  const auto told = channel.scratch(ranks * sizeof length);
  const auto place = [&](std::size_t rank) {
    return told.subspan(rank * sizeof length, sizeof length);
  };
  Segments segments;
  for (std::size_t rank = 0; rank < ranks; ++rank) segments.push_back(place(rank));
  const auto self = static_cast<std::size_t>(channel.rank());
  copy_own(std::as_bytes(std::span(&length, 1)), segments[self]);
  doubling_all_gather(channel, segments);

  std::vector<std::uint64_t> lengths(ranks);
  std::ranges::copy(told, std::as_writable_bytes(std::span(lengths)).begin());
  std::uint64_t sum = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (lengths[rank] > kMost - sum) {
      const auto from = static_cast<int>(rank);
      throw Error(ErrorCode::CorruptData,
                  fmt::format("rank {} of the group announces {} bytes, more than memory can hold",
                              from, lengths[rank]));
    }
    sum += lengths[rank];
  }
  all.memory = std::make_unique_for_overwrite<std::byte[]>(sum);
  std::span<std::byte> left(all.memory.get(), sum);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    segments[rank] = left.first(lengths[rank]);
    left = left.subspan(lengths[rank]);
    all.parts.push_back(segments[rank]);
  }
  copy_own(own, segments[self]);
  ring_all_gather(channel, segments);
}

// Gathered parts land in segments that were sent on before. Such a part comes only after the part
// of the same place has gone round the ring, and has thus left this memory.
void ring_all_reduce(Channel& channel, const Segments& segments, const Reduction& reduction) {
  if (channel.size() == 1) return reduction.finish(segments[0]);
  Ring ring(channel, segments);
  post_reduce_scatter(ring, reduction, true);
  post_all_gather(ring);
  channel.wait_all();
}

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
