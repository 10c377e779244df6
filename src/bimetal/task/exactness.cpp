#include "bimetal/task/exactness.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/nn/modules/activation.h>
#include <torch/csrc/api/include/torch/nn/modules/batchnorm.h>
#include <torch/csrc/api/include/torch/nn/modules/dropout.h>
#include <torch/csrc/api/include/torch/nn/modules/rnn.h>

#include <string>
#include <vector>

#include "bimetal/base/error.h"

namespace bimetal::task {
namespace {

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
