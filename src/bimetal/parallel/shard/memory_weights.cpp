#include "bimetal/parallel/shard/memory_weights.h"

#include <algorithm>
#include <cstdint>

#include "bimetal/balance/ring_parts.h"
#include "bimetal/device/device.h"

namespace bimetal::parallel::shard {
namespace {

std::uint64_t free_memory(const torch::Device& device) {
  for (const auto& info : device::enumerate_devices()) {
    if (info.device.type() == device.type() && info.device.index() == device.index()) {
      return info.memory_free_bytes;
    }
  }
  return 0;
}

}  // namespace

std::vector<double> weights_by_memory(comm::Group group, const torch::Device& device,
                                      Deadline deadline, bool copies) {
  const std::vector<std::uint64_t> mine = {free_memory(device)};
  std::vector<std::uint64_t> all(static_cast<std::size_t>(group.size()));
  const auto bytes = [](const auto& numbers) {
    return comm::ConstBuffer{numbers.data(), numbers.size() * sizeof(std::uint64_t),
                             comm::DType::uint8};
  };
  group
      .all_gather(bytes(mine), {all.data(), all.size() * sizeof(std::uint64_t), comm::DType::uint8},
                  deadline)
      .wait();
  if (std::ranges::find(all, std::uint64_t{0}) != all.end()) {
    return std::vector<double>(all.size(), 1.0);
  }
  const std::vector<double> rooms(all.begin(), all.end());
  return copies ? balance::ring_parts(rooms) : rooms;
}

}  // namespace bimetal::parallel::shard
