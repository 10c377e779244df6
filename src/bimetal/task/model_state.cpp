#include "bimetal/task/model_state.h"

#include <fmt/format.h>

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
      throw Error(ErrorCode::InvalidArgument,
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
