#include "bimetal/comm/algorithms/recursive_doubling.h"

#include <algorithm>
#include <bit>

#include "bimetal/comm/algorithms/power_of_two.h"
#include "bimetal/comm/reduce/reduce_kernels.h"

namespace bimetal::comm {

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

  // Each exchange receives into memory of its own and leaves its result there, so that what was
  // sent stays as it is without waiting.
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

}  // namespace bimetal::comm
