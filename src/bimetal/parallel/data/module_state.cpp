#include "bimetal/parallel/data/module_state.h"

#include <unordered_set>

namespace bimetal::parallel {

namespace {

std::vector<NamedTensor> distinct(const torch::OrderedDict<std::string, torch::Tensor>& named) {
  std::vector<NamedTensor> result;
  std::unordered_set<const void*> seen;
  for (const auto& item : named) {
    const torch::Tensor& tensor = item.value();
    if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    result.push_back({item.key(), tensor});
  }
  return result;
}

}  // namespace

ModuleState module_state(const torch::nn::Module& module) {
  return {.parameters = distinct(module.named_parameters()),
          .buffers = distinct(module.named_buffers())};
}

std::vector<torch::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<torch::Tensor> tensors;
  tensors.reserve(named.size());
  for (const auto& item : named) tensors.push_back(item.tensor);
  return tensors;
}

}  // namespace bimetal::parallel
