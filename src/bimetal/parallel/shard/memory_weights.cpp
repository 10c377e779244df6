#include "bimetal/parallel/shard/memory_weights.h"

#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "bimetal/balance/shares.h"
#include "bimetal/device/device.h"

namespace bimetal::parallel::shard {
namespace {

std::shared_ptr<const optim::StateFile> keep_on_disk(std::vector<FlatParameters>& flats,
                                                     const std::filesystem::path& folder) {
  constexpr auto kStride = optim::kFileTensorAlignment;
  std::vector<std::uint64_t> places;
  std::uint64_t end = 0;
  for (const auto& flat : flats) {
    places.push_back(end);
    end += (flat.own().nbytes() + kStride - 1) / kStride * kStride;
  }
  const auto file = std::make_shared<optim::StateFile>(folder, end);
  for (std::size_t i = 0; i < flats.size(); ++i) {
    const auto own = flats[i].own();
    flats[i].set_apart_in({file, places[i], own.numel(), own.scalar_type()});
  }
  return file;
}

}  // namespace

std::shared_ptr<const optim::StateFile> keep_apart(std::vector<FlatParameters>& flats, Kept kept,
                                                   const std::filesystem::path& folder) {
  if (kept == Kept::OnDisk) return keep_on_disk(flats, folder);
  for (auto& flat : flats) kept == Kept::OnHost ? flat.set_apart_on_host() : flat.set_apart();
  return nullptr;
}

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
