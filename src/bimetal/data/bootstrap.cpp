#include "bimetal/data/bootstrap.h"

#include <torch/torch.h>

#include <random>

#include "bimetal/data/uniform.h"

namespace bimetal::data {

ImageDataset bootstrap(const ImageDataset& dataset, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  const auto indices = torch::empty({dataset.size()}, torch::kInt64);
  auto* index = indices.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    index[i] = static_cast<std::int64_t>(
        uniform_below(static_cast<std::uint64_t>(dataset.size()), engine));
  }
  ImageDataset drawn = dataset;
  drawn.images = dataset.images.index_select(0, indices);
  drawn.labels = dataset.labels.index_select(0, indices);
  return drawn;
}

}  // namespace bimetal::data
