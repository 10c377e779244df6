#include "bimetal/task/task.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "bimetal/base/error.h"

namespace bimetal::task {
namespace {

Model as_one_unit(const torch::nn::Module& module) {
  Unit unit;
  for (const auto& item : module.named_parameters()) {
    if (item.value().defined()) unit.parameters.push_back({item.key(), item.value()});
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) unit.buffers.push_back({item.key(), item.value()});
  }
  return {{std::move(unit)}};
}

}  // namespace

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

ModelState::ModelState(const Model& model)
    : parameters(model.named_parameters()), buffers(model.named_buffers()) {
  for (const auto& names : model.tied()) {
    other_names.insert(other_names.end(), names.begin() + 1, names.end());
  }
}

ModelState::ModelState(const torch::nn::Module& module) : ModelState(as_one_unit(module)) {}

void require_distinct_names(const ModelState& model) {
  std::unordered_set<std::string> names;
  for (const auto* of_one_kind : {&model.parameters, &model.buffers}) {
    for (const auto& named : *of_one_kind) {
      if (names.insert(named.name).second) continue;
      throw Error(
          ErrorCode::InvalidArgument,
          fmt::format("the model has two tensors that are called '{}', of which a file would "
                      "keep one: give its units names of their own",
                      named.name));
    }
  }
}

std::vector<torch::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<torch::Tensor> tensors;
  tensors.reserve(named.size());
  for (const auto& item : named) tensors.push_back(item.tensor);
  return tensors;
}

}  // namespace bimetal::task
