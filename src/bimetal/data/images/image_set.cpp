#include "bimetal/data/images/image_set.h"

#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>

#include "bimetal/data/images/augment.h"
#include "bimetal/task/draws.h"

namespace bimetal::data {

task::Values ImageSet::batch(std::span<const std::int64_t> samples) const {
  const auto indices = torch::empty({static_cast<std::int64_t>(samples.size())}, torch::kInt64);
  std::ranges::copy(samples, indices.mutable_data_ptr<std::int64_t>());
  const auto draws = task::current_draws();
  if (augment_ == Augment::No || !draws) {
    auto batch = make_batch(images_, indices, dtype_);
    return {std::move(batch.x), std::move(batch.y)};
  }
  check_indices(images_, indices);
  return {
      normalised(augmented(images_.images, samples, *draws), images_.mean, images_.stddev, dtype_),
      images_.labels.index_select(0, indices)};
}

}  // namespace bimetal::data
