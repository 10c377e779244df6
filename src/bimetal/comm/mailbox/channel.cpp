#include "bimetal/comm/mailbox/channel.h"

#include <numeric>

#include "bimetal/comm/parts.h"

namespace bimetal::comm {

Channel::Channel(GroupCore& core, std::shared_ptr<Flight> flight)
    : core_(core),
      flight_(std::move(flight)),
      members_(core.size()),
      rank_(core.rank()),
      next_parts_(std::make_shared<std::vector<std::uint32_t>>(core.size())) {
  std::iota(members_.begin(), members_.end(), 0);
}

Channel Channel::among(const std::vector<int>& ranks) const {
  Channel view = *this;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == rank_) view.rank_ = static_cast<int>(i);
    view.members_[i] = members_[ranks[i]];
  }
  view.members_.resize(ranks.size());
  return view;
}

void Channel::send(int to, std::span<const std::byte> bytes) {
  for (const auto part : parts_of(bytes)) send_part(to, part);
}

void Channel::receive_part(int from, std::span<std::byte> into, Combine combine, int to) {
  if (to < 0) return core_.receive(flight_, members_[from], into, {std::move(combine)});
  core_.receive(flight_, members_[from], into, {std::move(combine), members_[to], next_part(to)});
}

std::span<std::byte> Channel::scratch(std::size_t bytes) {
  flight_->scratch.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
  return {flight_->scratch.back().get(), bytes};
}

}  // namespace bimetal::comm
