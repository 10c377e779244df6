#include "bimetal/task/unit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/nn/modules/activation.h>
#include <torch/csrc/api/include/torch/nn/modules/batchnorm.h>
#include <torch/csrc/api/include/torch/nn/modules/conv.h>
#include <torch/csrc/api/include/torch/nn/modules/dropout.h>
#include <torch/csrc/api/include/torch/nn/modules/linear.h>
#include <torch/csrc/api/include/torch/nn/modules/rnn.h>

#include <algorithm>
#include <exception>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/task/task.h"

namespace bimetal::task {
namespace {

using Tensors = std::vector<NamedTensor> Unit::*;

std::vector<NamedTensor> distinct(const std::vector<Unit>& units, Tensors tensors) {
  std::vector<NamedTensor> found;
  for (const auto& unit : units) {
    for (const auto& named : unit.*tensors) {
      const bool known = std::ranges::any_of(
          found, [&](const NamedTensor& other) { return other.tensor.is_same(named.tensor); });
      if (!known) found.push_back(named);
    }
  }
  return found;
}

std::vector<NamedTensor> named_with(const torch::OrderedDict<std::string, torch::Tensor>& named,
                                    const std::string& prefix) {
  std::vector<NamedTensor> tensors;
  for (const auto& item : named) {
    if (item.value().defined()) tensors.push_back({prefix + item.key(), item.value()});
  }
  return tensors;
}

std::vector<std::string> products_of(const torch::nn::Module& module, const std::string& prefix) {
  std::vector<std::string> names;
  for (const auto& part : module.named_modules("", /*include_self=*/true)) {
    const auto& layer = *part.value();
    const bool product = layer.as<torch::nn::LinearImpl>() != nullptr ||
                         layer.as<torch::nn::Conv1dImpl>() != nullptr ||
                         layer.as<torch::nn::Conv2dImpl>() != nullptr ||
                         layer.as<torch::nn::Conv3dImpl>() != nullptr;
    if (!product) continue;
    const auto path = part.key().empty() ? prefix : prefix + part.key() + ".";
    for (const auto& named : named_with(layer.named_parameters(/*recurse=*/false), path)) {
      names.push_back(named.name);
    }
  }
  return names;
}

// set_data, as torch::nn::Module::to has it: who holds the tensor holds the moved one.
void move(const Model& model, const std::function<torch::Tensor(const torch::Tensor&)>& moved) {
  const torch::NoGradGuard no_grad;
  const auto move_one = [&](torch::Tensor tensor) { tensor.set_data(moved(tensor.detach())); };
  for (const auto& tensors : {model.named_parameters(), model.named_buffers()}) {
    for (const auto& named : tensors) move_one(named.tensor);
  }
  for (const auto& of_one : model.statistics()) move_one(of_one.sums);
}

template <typename... Layers>
bool is_one_of(const torch::nn::Module& layer) {
  return (... || (layer.as<Layers>() != nullptr));
}

/// Whether it is one of these and drops anything.
template <typename... Layers>
bool drops(const torch::nn::Module& layer) {
  const auto one = [](const auto* of_kind) { return of_kind && of_kind->options.p() > 0; };
  return (... || one(layer.as<Layers>()));
}

template <typename... Layers>
bool drops_between(const torch::nn::Module& layer) {
  const auto one = [](const auto* of_kind) { return of_kind && of_kind->options.dropout() > 0; };
  return (... || one(layer.as<Layers>()));
}

const char* finding(const torch::nn::Module& layer) {
  using namespace torch::nn;
  if (!layer.is_training()) return nullptr;
  if (is_one_of<BatchNorm1dImpl, BatchNorm2dImpl, BatchNorm3dImpl>(layer)) {
    return "normalises by whatever samples are beside each other: take task::GroupedBatchNorm or "
           "torch::nn::GroupNorm";
  }
  if (drops<DropoutImpl, Dropout2dImpl, Dropout3dImpl, AlphaDropoutImpl, FeatureAlphaDropoutImpl>(
          layer) ||
      drops_between<RNNImpl, LSTMImpl, GRUImpl, MultiheadAttentionImpl>(layer)) {
    return "drops by a generator of each rank: take task::dropout_by_sample";
  }
  return nullptr;
}

void find(const torch::nn::Module& module, const std::string& of, std::vector<std::string>& found) {
  for (const auto& part : module.named_modules("", /*include_self=*/true)) {
    const char* what = finding(*part.value());
    if (!what) continue;
    const auto between = of.empty() || part.key().empty() ? "" : ".";
    const auto name = of + between + part.key();
    found.push_back(fmt::format("{} {}", name.empty() ? "the model" : name, what));
  }
}

void require_none(const std::vector<std::string>& found) {
  if (found.empty()) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("the result would depend on how batches are split between ranks: {}",
                          fmt::join(found, "; ")));
}

}  // namespace

std::vector<NamedTensor> Model::named_parameters() const {
  return distinct(units, &Unit::parameters);
}

std::vector<NamedTensor> Model::named_buffers() const {
  return distinct(units, &Unit::buffers);
}

std::vector<torch::Tensor> Model::parameters() const {
  return tensors_of(named_parameters());
}

std::vector<std::vector<std::string>> Model::tied() const {
  std::vector<std::vector<std::string>> names;
  std::unordered_map<const c10::TensorImpl*, std::size_t> places;
  for (const auto& unit : units) {
    for (const auto* tensors : {&unit.parameters, &unit.buffers}) {
      for (const auto& named : *tensors) {
        const auto [place, fresh] =
            places.emplace(named.tensor.unsafeGetTensorImpl(), names.size());
        if (fresh) names.emplace_back();
        auto& known = names[place->second];
        if (std::ranges::find(known, named.name) == known.end()) known.push_back(named.name);
      }
    }
  }
  std::erase_if(names, [](const auto& of_one) { return of_one.size() == 1; });
  return names;
}

std::vector<BatchStatistics> Model::statistics() const {
  std::vector<BatchStatistics> all;
  for (const auto& unit : units) {
    all.insert(all.end(), unit.statistics.begin(), unit.statistics.end());
  }
  return all;
}

std::int64_t Model::sample_group() const {
  std::int64_t group = 1;
  for (const auto& of_one : statistics()) group = std::max(group, of_one.group);
  return group;
}

void Model::train(bool on) const {
  for (const auto& unit : units) {
    if (unit.set_training) unit.set_training(on);
  }
}

void Model::to(const torch::Device& device, torch::Dtype dtype) const {
  move(*this, [&](const torch::Tensor& tensor) {
    return tensor.is_floating_point() ? tensor.to(device, dtype) : tensor.to(device);
  });
}

void Model::to(const torch::Device& device) const {
  move(*this, [&](const torch::Tensor& tensor) { return tensor.to(device); });
}

Unit make_unit(std::string name, std::shared_ptr<torch::nn::Module> module,
               std::function<Values(const Values& inputs)> forward) {
  const auto prefix = name.empty() ? name : name + ".";
  Unit unit;
  unit.name = name.empty() ? "model" : std::move(name);
  unit.parameters = named_with(module->named_parameters(), prefix);
  unit.buffers = named_with(module->named_buffers(), prefix);
  unit.forward = std::move(forward);
  unit.products = products_of(*module, prefix);
  for (const auto& part : module->modules()) {
    if (const auto* norm = part->as<GroupedBatchNorm>()) {
      unit.statistics.push_back(norm->statistics());
    }
  }
  unit.set_training = ModuleTraining{std::move(module)};
  return unit;
}

Unit make_unit(std::string name, std::shared_ptr<torch::nn::Module> module,
               std::function<torch::Tensor(torch::Tensor input)> forward) {
  return make_unit(std::move(name), std::move(module),
                   [forward = std::move(forward)](const Values& inputs) {
                     return Values{forward(inputs.front())};
                   });
}

namespace {

/// The last exception that came out of a unit on this thread.
struct UnitFailure {
  std::exception_ptr exception = {};
  std::string unit = {};
};
thread_local UnitFailure failure;

}  // namespace

Values run_units(const Model& model, Values inputs, const BeforeUse& before_use) {
  return run_units(model.units, std::move(inputs), before_use, 0);
}

Values run_units(std::span<const Unit> units, Values inputs, const BeforeUse& before_use,
                 std::size_t first) {
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (before_use) before_use(first + i);
    try {
      inputs = units[i].forward(inputs);
    } catch (...) {
      failure = {std::current_exception(), units[i].name};
      throw;
    }
  }
  return inputs;
}

std::string failed_unit() {
  const auto handled = std::current_exception();
  return handled && handled == failure.exception ? failure.unit : std::string();
}

std::int64_t samples_of(const Values& batch) {
  return batch.empty() ? 0 : batch.front().size(0);
}

Values slice(const Values& batch, std::int64_t begin, std::int64_t end) {
  Values piece;
  piece.reserve(batch.size());
  for (const auto& values : batch) piece.push_back(values.slice(0, begin, end));
  return piece;
}

Values to_device(const Values& values, const torch::Device& device, bool non_blocking) {
  Values moved;
  moved.reserve(values.size());
  for (const auto& value : values) moved.push_back(value.to(device, non_blocking));
  return moved;
}

Values in_channels_last(Values values) {
  for (auto& value : values) {
    if (value.dim() != 4 || !value.is_floating_point()) continue;
    value = value.contiguous(torch::MemoryFormat::ChannelsLast);
  }
  return values;
}

void require_exact(const torch::nn::Module& module) {
  std::vector<std::string> found;
  find(module, "", found);
  require_none(found);
}

void require_exact(const Model& model) {
  std::vector<std::string> found;
  for (const auto& unit : model.units) {
    const auto* training = unit.set_training.target<ModuleTraining>();
    if (training) find(*training->module, unit.name, found);
  }
  require_none(found);
}

}  // namespace bimetal::task
