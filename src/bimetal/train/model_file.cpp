#include "bimetal/train/model_file.h"

#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/utils.h>

#include "bimetal/base/error.h"

namespace bimetal::train {
namespace {

std::string kind_of(const torch::Tensor& tensor) {
  return c10::str(tensor.sizes(), " ", tensor.scalar_type());
}

[[noreturn]] void fail(const std::string& origin, const std::string& difference) {
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} holds another model: {}", origin, difference));
}

void add_defined(const torch::OrderedDict<std::string, torch::Tensor>& from, TensorMap& to) {
  for (const auto& item : from) {
    if (item.value().defined()) to.emplace(item.key(), item.value());
  }
}

}  // namespace

TensorMap model_tensors(const torch::nn::Module& module) {
  TensorMap tensors;
  add_defined(module.named_parameters(), tensors);
  add_defined(module.named_buffers(), tensors);
  return tensors;
}

void require_same_tensors(const TensorMap& stored, const TensorMap& wanted,
                          const std::string& origin) {
  for (const auto& [name, tensor] : wanted) {
    const auto found = stored.find(name);
    if (found == stored.end()) fail(origin, fmt::format("it has no '{}'", name));
    const auto there = kind_of(found->second), here = kind_of(tensor);
    if (there != here) fail(origin, fmt::format("'{}' is {} there and {} here", name, there, here));
  }
  for (const auto& [name, tensor] : stored) {
    if (!wanted.contains(name)) fail(origin, fmt::format("'{}' is unknown here", name));
  }
}

void copy_values(const TensorMap& from, const TensorMap& to) {
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : from) to.at(name).copy_(tensor);
}

void save_model(const torch::nn::Module& module, const std::filesystem::path& path) {
  write_safetensors(path, model_tensors(module));
}

void load_model(torch::nn::Module& module, const std::filesystem::path& path) {
  const auto stored = read_safetensors(path);
  const auto own = model_tensors(module);
  require_same_tensors(stored, own, path.string());
  copy_values(stored, own);
}

}  // namespace bimetal::train
