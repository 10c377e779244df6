#include "bimetal/task/task.h"

#include <algorithm>
#include <numeric>

namespace bimetal::task {

std::vector<std::int64_t> weights_of(const Dataset& dataset) {
  std::vector<std::int64_t> weights(static_cast<std::size_t>(dataset.size()));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i] = dataset.weight(static_cast<std::int64_t>(i));
  }
  if (std::ranges::all_of(weights, [](auto weight) { return weight == 1; })) return {};
  return weights;
}

std::int64_t weight_of(const Dataset& dataset, std::int64_t begin, std::int64_t end) {
  std::int64_t sum = 0;
  for (auto sample = begin; sample < end; ++sample) sum += dataset.weight(sample);
  return sum;
}

std::int64_t typical_weight(const Dataset& dataset) {
  constexpr std::int64_t kSome = 64;
  const auto some = std::min(kSome, dataset.size());
  return std::max<std::int64_t>(1, weight_of(dataset, 0, some) / some);
}

Values batch_of(const Dataset& dataset, std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(end - begin));
  std::iota(samples.begin(), samples.end(), begin);
  return dataset.batch(samples);
}

Values Task::inputs(const Values& batch) const {
  return batch.empty() ? Values() : Values(batch.begin(), batch.end() - 1);
}

}  // namespace bimetal::task
