#include "bimetal/comm/algorithms/halving_doubling.h"

#include <vector>

#include "bimetal/comm/algorithms/power_of_two.h"
#include "bimetal/comm/parts.h"

namespace bimetal::comm {
namespace {

void receive(Channel& channel, int from, std::span<std::byte> into, const Combine& combine) {
  for (const auto part : parts_of(into)) channel.receive_part(from, part, combine);
}

// Elements [begin, end) of the message, halved again and again.
struct Half {
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
  const auto bytes = [&](const Half& range) {
    return data.subspan(range.begin * element, (range.end - range.begin) * element);
  };
  const int position = layout.position_of(rank);
  // Each halving is undone by the doubling with the same partner.
  struct Step {
    int partner;
    Half kept, given;
  };
  std::vector<Step> steps;
  Half own{0, data.size() / element};
  for (int distance = layout.active / 2; distance > 0; distance /= 2) {
    const Half low{own.begin, own.middle()}, high{own.middle(), own.end};
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

}  // namespace bimetal::comm
