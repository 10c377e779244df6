#include "bimetal/comm/channel.h"

#include "bimetal/comm/parts.h"

namespace bimetal::comm {

void Channel::send(int to, std::span<const std::byte> bytes) {
  for (const auto part : parts_of(bytes)) core_.send(flight_, to, next_part_[to]++, part);
}

std::span<std::byte> Channel::scratch(std::size_t bytes) {
  flight_->scratch.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
  return {flight_->scratch.back().get(), bytes};
}

}  // namespace bimetal::comm
