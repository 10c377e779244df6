#include "bimetal/checkpoint/model_file.h"

#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/utils.h>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/device/device.h"
#include "bimetal/models/language/language_model.h"
#include "bimetal/models/registry.h"

namespace bimetal::checkpoint {

task::Model draw_described_model(const ModelDescription& description, const task::UnitMade& made) {
  if (description.language) return models::make_language_model(*description.language, made);
  if (description.in_python()) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("the checkpoint's model is written in Python ({0}), and what it takes "
                            "is not known here: load its model.safetensors into it there "
                            "(docs/tasks.md), or evaluate it with its job file",
                            description.name));
  }
  auto model = models::make_model(description.name,
                                  {.channels = description.channels,
                                   .height = description.height,
                                   .width = description.width,
                                   .classes = description.classes},
                                  description.hidden, description.norm_group)
                   ->units();
  for (const auto& unit : model.units) made(unit);
  return model;
}

std::optional<std::string> other_normalisation(const std::optional<ModelDescription>& before,
                                               const ModelDescription& now) {
  if (!before || now.language || now.in_python()) return std::nullopt;
  if (before->mean == now.mean && before->stddev == now.stddev) return std::nullopt;
  return fmt::format(
      "the checkpoint's model was trained on images normalised by data.mean = [{}] and data.stddev "
      "= [{}], and goes on with [{}] and [{}]: set these keys to keep to the former",
      fmt::join(before->mean, ", "), fmt::join(before->stddev, ", "), fmt::join(now.mean, ", "),
      fmt::join(now.stddev, ", "));
}

task::Model make_described_model(const ModelDescription& description) {
  const auto before = random_state();
  auto model = draw_described_model(description);
  set_random_state(before);
  model.to(torch::kCPU, device::dtype_named(description.dtype));
  model.eval();
  return model;
}

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
