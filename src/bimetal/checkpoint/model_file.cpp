#include "bimetal/checkpoint/model_file.h"

#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/utils.h>

#include "bimetal/base/error.h"

namespace bimetal::checkpoint {
namespace {

std::string kind_of(const torch::Tensor& tensor) {
  return c10::str(tensor.sizes(), " ", tensor.scalar_type());
}

[[noreturn]] void differs(const std::string& origin, const std::string& difference) {
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} holds another model: {}", origin, difference));
}

}  // namespace

TensorMap model_tensors(const task::ModelState& model) {
  TensorMap tensors;
  for (const auto* of_one_kind : {&model.parameters, &model.buffers}) {
    for (const auto& [name, tensor] : *of_one_kind) tensors.emplace(name, tensor);
  }
  return tensors;
}

void require_same_tensors(const TensorMap& stored, const TensorMap& wanted,
                          const std::string& origin) {
  for (const auto& [name, tensor] : wanted) {
    const auto found = stored.find(name);
    if (found == stored.end()) differs(origin, fmt::format("it has no '{}'", name));
    const auto there = kind_of(found->second), here = kind_of(tensor);
    if (there != here)
      differs(origin, fmt::format("'{}' is {} there and {} here", name, there, here));
  }
  for (const auto& [name, tensor] : stored) {
    if (!wanted.contains(name)) differs(origin, fmt::format("'{}' is unknown here", name));
  }
}

TensorMap stored_tensors(const std::filesystem::path& path, const task::ModelState& model) {
  auto stored = read_safetensors(path);
  for (const auto& name : model.other_names) stored.erase(name);
  return stored;
}

void copy_values(const TensorMap& from, const TensorMap& to) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : from) to.at(name).copy_(tensor);
}

void save_model(const task::ModelState& model, const std::filesystem::path& path) {
  task::require_distinct_names(model);
  write_safetensors(path, model_tensors(model));
}

void load_model(const task::ModelState& model, const std::filesystem::path& path) {
  task::require_distinct_names(model);
  const auto own = model_tensors(model);
  const auto stored = stored_tensors(path, model);
  require_same_tensors(stored, own, path.string());
  copy_values(stored, own);
}

}  // namespace bimetal::checkpoint
