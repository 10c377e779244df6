#include "bimetal/data/bootstrap.h"

#include <torch/csrc/api/include/torch/types.h>

#include <random>

#include "bimetal/data/uniform.h"

namespace bimetal::data {

std::vector<std::int64_t> draw_samples(std::int64_t size, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::vector<std::int64_t> samples(static_cast<std::size_t>(size));
  for (auto& sample : samples) {
    sample = static_cast<std::int64_t>(uniform_below(static_cast<std::uint64_t>(size), engine));
  }
  return samples;
}

ImageDataset bootstrap(const ImageDataset& dataset, std::uint64_t seed) {
  const auto indices = torch::tensor(draw_samples(dataset.size(), seed), torch::kInt64);
  ImageDataset drawn = dataset;
  drawn.images = dataset.images.index_select(0, indices);
  drawn.labels = dataset.labels.index_select(0, indices);
  return drawn;
}

}  // namespace bimetal::data
