#include "bimetal/api/images.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"

namespace bimetal::data {

ImageDataset idx_images(const std::string& name, const Job& job,
                        const std::filesystem::path& path) {
  auto images = load_dataset(name, path).train;
  const std::vector<std::int64_t> mine = {images.size()};
  std::vector<std::int64_t> all(static_cast<std::size_t>(job.world_size()));
  job.group().all_gather(comm::buffer(std::span(mine)), comm::buffer(std::span(all))).wait();
  const auto other = std::ranges::find_if(all, [&](auto size) { return size != all.front(); });
  if (other == all.end()) return images;
  const auto rank = static_cast<int>(other - all.begin());
  throw Error(
      ErrorCode::CallMismatch,
      fmt::format("'{}' has {} images on rank {} but {} on rank 0: give every rank the same "
                  "files",
                  name, *other, rank, all.front()),
      rank);
}

}  // namespace bimetal::data
