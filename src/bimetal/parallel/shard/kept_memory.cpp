#include "bimetal/parallel/shard/kept_memory.h"

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <memory>

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

}  // namespace bimetal::parallel::shard
