#include "bimetal/data/images/image_set.h"

#include <torch/torch.h>

#include <algorithm>

namespace bimetal::data {

task::Values ImageSet::batch(std::span<const std::int64_t> samples) const {
  const auto indices = torch::empty({static_cast<std::int64_t>(samples.size())}, torch::kInt64);
  std::ranges::copy(samples, indices.mutable_data_ptr<std::int64_t>());
  auto batch = make_batch(images_, indices, dtype_);
  return {std::move(batch.x), std::move(batch.y)};
}

}  // namespace bimetal::data
