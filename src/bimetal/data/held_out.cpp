#include "bimetal/data/held_out.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/data/sampler.h"

namespace bimetal::data {

HeldOut hold_out(std::int64_t size, double part, std::uint64_t seed) {
  if (size < 2) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("of {} training samples none can be held out (data.validation)", size));
  }
  const auto count =
      std::clamp<std::int64_t>(std::llround(part * static_cast<double>(size)), 1, size - 1);
  std::vector<std::int64_t> all(static_cast<std::size_t>(size));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  // The first steps of Fisher and Yates' shuffle: each set of so many samples is as likely.
  std::mt19937_64 engine(seed);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto left = static_cast<std::uint64_t>(size - i);
    std::swap(all[static_cast<std::size_t>(i)],
              all[static_cast<std::size_t>(i) + uniform_below(left, engine)]);
  }
  HeldOut parts{{all.begin() + count, all.end()}, {all.begin(), all.begin() + count}};
  std::ranges::sort(parts.training);
  std::ranges::sort(parts.validation);
  return parts;
}

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
