#include "bimetal/checkpoint/optimizer_state.h"

#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/optim/adam.h>
#include <torch/csrc/api/include/torch/optim/adamw.h>
#include <torch/csrc/api/include/torch/optim/sgd.h>
#include <torch/csrc/api/include/torch/types.h>

#include <functional>
#include <unordered_map>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/optim/fused.h"
#include "bimetal/optim/layer_wise.h"

namespace bimetal::checkpoint {
namespace {

using Json = nlohmann::ordered_json;
using ParamState = torch::optim::OptimizerParamState;
using torch::optim::Optimizer;

// One overload for each kind of state; `visit(name, tensor, required)` sees each of its tensors.
template <typename Visit>
void visit_tensors(torch::optim::SGDParamState& state, Visit visit) {
  visit("momentum_buffer", state.momentum_buffer(), true);
}
template <typename AdamLike, typename Visit>
void visit_tensors(AdamLike& state, Visit visit) {
  visit("exp_avg", state.exp_avg(), true);
  visit("exp_avg_sq", state.exp_avg_sq(), true);
  visit("max_exp_avg_sq", state.max_exp_avg_sq(), false);  // with amsgrad only
}

// The number of steps behind a state, for kinds that count them.
std::int64_t* step_count(torch::optim::SGDParamState&) {
  return nullptr;
}
template <typename AdamLike>
std::int64_t* step_count(AdamLike& state) {
  return &state.step();
}

template <typename Options>
bool needs_max(const Options& options) {
  if constexpr (requires { options.amsgrad(); }) return options.amsgrad();
  return false;
}

Json settings(const torch::optim::SGDOptions& options) {
  return {{"learning_rate", options.lr()},
          {"momentum", options.momentum()},
          {"dampening", options.dampening()},
          {"weight_decay", options.weight_decay()},
          {"nesterov", options.nesterov()}};
}
Json settings(const optim::LarsOptions& options) {
  return {{"learning_rate", options.lr()},
          {"momentum", options.momentum()},
          {"weight_decay", options.weight_decay()},
          {"trust_coefficient", options.trust_coefficient()}};
}
Json settings(const optim::LambOptions& options) {
  return {{"learning_rate", options.lr()},
          {"beta1", std::get<0>(options.betas())},
          {"beta2", std::get<1>(options.betas())},
          {"epsilon", options.eps()},
          {"weight_decay", options.weight_decay()}};
}
template <typename AdamLike>
Json settings(const AdamLike& options) {
  return {{"learning_rate", options.lr()},          {"beta1", std::get<0>(options.betas())},
          {"beta2", std::get<1>(options.betas())},  {"epsilon", options.eps()},
          {"weight_decay", options.weight_decay()}, {"amsgrad", options.amsgrad()}};
}

template <typename State>
TensorMap tensors_of(const ParamState& generic) {
  auto state = static_cast<const State&>(generic);  // a copy shares its tensors
  TensorMap tensors;
  visit_tensors(state, [&](const char* name, const torch::Tensor& tensor, bool) {
    if (tensor.defined()) tensors[name] = tensor;
  });
  if (const auto* steps = step_count(state)) tensors["step"] = torch::tensor(*steps, torch::kInt64);
  return tensors;
}

/// The fault in one parameter's state.
struct StateFlaw {
  std::string text;
};

torch::Tensor take(TensorMap& tensors, const std::string& name, const torch::Tensor& like) {
  const auto node = tensors.extract(name);
  if (node.empty()) return {};
  const auto& tensor = node.mapped();
  if (tensor.sizes() != like.sizes() || tensor.scalar_type() != like.scalar_type()) {
    throw StateFlaw{c10::str(name, " is ", tensor.sizes(), " ", tensor.scalar_type(),
                             ", the parameter ", like.sizes(), " ", like.scalar_type())};
  }
  return tensor;
}

template <typename State, typename Options>
std::unique_ptr<ParamState> state_from(TensorMap tensors, const torch::Tensor& parameter,
                                       const torch::optim::OptimizerOptions& options) {
  auto state = std::make_unique<State>();
  if (auto* steps = step_count(*state)) {
    const auto count = take(tensors, "step", torch::empty({}, torch::kInt64));
    if (!count.defined()) throw StateFlaw{"step is missing"};
    *steps = count.item<std::int64_t>();
  }
  const bool with_max = needs_max(static_cast<const Options&>(options));
  visit_tensors(*state, [&](const char* name, torch::Tensor& tensor, bool required) {
    tensor = take(tensors, name, parameter);
    if (!tensor.defined() && (required || with_max))
      throw StateFlaw{fmt::format("{} is missing", name)};
    if (tensor.defined()) tensor = tensor.to(parameter.device());
  });
  if (!tensors.empty()) throw StateFlaw{fmt::format("{} is unknown", tensors.begin()->first)};
  return state;
}

TensorMap foreign_tensors(const ParamState& state) {
  return static_cast<const optim::ForeignState&>(state).tensors;
}

/// Numbers stay where they are: on the CPU, as torch's own optimizers keep them.
std::unique_ptr<ParamState> foreign_state(TensorMap tensors, const torch::Tensor& parameter,
                                          const torch::optim::OptimizerOptions&) {
  auto state = std::make_unique<optim::ForeignState>();
  for (auto& [name, tensor] : tensors) {
    state->tensors[name] =
        tensor.sizes() == parameter.sizes() ? tensor.to(parameter.device()) : tensor;
  }
  return state;
}

/// All that differs between the kinds of optimizers.
struct Kind {
  std::string name;
  TensorMap (*tensors_of)(const ParamState&);
  std::unique_ptr<ParamState> (*state_from)(TensorMap, const torch::Tensor&,
                                            const torch::optim::OptimizerOptions&);
  Json (*settings)(const torch::optim::OptimizerOptions&);
};

template <typename State, typename Options>
Kind make_kind(const char* name) {
  return {name, tensors_of<State>, state_from<State, Options>,
          [](const torch::optim::OptimizerOptions& options) {
            return settings(static_cast<const Options&>(options));
          }};
}

Kind kind_of(const Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer)) {
    return make_kind<torch::optim::SGDParamState, torch::optim::SGDOptions>("sgd");
  }
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer)) {
    return make_kind<torch::optim::AdamParamState, torch::optim::AdamOptions>("adam");
  }
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer)) {
    return make_kind<torch::optim::AdamWParamState, torch::optim::AdamWOptions>("adamw");
  }
  if (dynamic_cast<const optim::Lars*>(&optimizer)) {
    return make_kind<torch::optim::SGDParamState, optim::LarsOptions>("lars");
  }
  if (dynamic_cast<const optim::Lamb*>(&optimizer)) {
    return make_kind<torch::optim::AdamParamState, optim::LambOptions>("lamb");
  }
  if (const auto* foreign = dynamic_cast<const optim::ForeignOptimizer*>(&optimizer)) {
    return {foreign->kind(), foreign_tensors, foreign_state,
            [](const torch::optim::OptimizerOptions&) { return Json::object(); }};
  }
  throw Error(ErrorCode::Unsupported,
              "checkpoints hold the state of SGD, Adam, AdamW, LARS and LAMB; this optimizer is "
              "none of them");
}

using Visitor = std::function<void(const std::string& name, const torch::Tensor& parameter,
                                   const torch::optim::OptimizerOptions& options)>;

/// Every parameter of the optimizer under the model's name for it.
void visit_parameters(const Optimizer& optimizer, const task::ModelState& model,
                      const Visitor& visit) {
  std::unordered_map<const void*, std::string> names;
  for (const auto& item : model.parameters) {
    names.emplace(item.tensor.unsafeGetTensorImpl(), item.name);
  }
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto name = names.find(parameter.unsafeGetTensorImpl());
      if (name == names.end()) {
        throw Error(ErrorCode::InvalidArgument,
                    c10::str("the optimizer works on a parameter of shape ", parameter.sizes(),
                             " that is not the model's"));
      }
      visit(name->second, parameter, group.options());
    }
  }
}

/// Takes the tensors named "<prefix><anything without a dot>" out of `tensors`.
TensorMap take_prefixed(TensorMap& tensors, const std::string& prefix) {
  TensorMap taken;
  for (auto next = tensors.lower_bound(prefix);
       next != tensors.end() && next->first.starts_with(prefix);) {
    const auto name = next->first.substr(prefix.size());
    if (name.find('.') == std::string::npos) taken[name] = next->second;
    next = name.find('.') == std::string::npos ? tensors.erase(next) : std::next(next);
  }
  return taken;
}

}  // namespace

std::string optimizer_kind(const Optimizer& optimizer) {
  return kind_of(optimizer).name;
}

Json optimizer_settings(const Optimizer& optimizer) {
  const Kind kind = kind_of(optimizer);
  Json groups = Json::array();
  for (const auto& group : optimizer.param_groups())
    groups.push_back(kind.settings(group.options()));
  return groups;
}

OptimizerFacts optimizer_facts(const Optimizer& optimizer) {
  return {optimizer_kind(optimizer), optimizer_settings(optimizer)};
}

TensorMap optimizer_tensors(const Optimizer& optimizer, const task::ModelState& model) {
  const Kind kind = kind_of(optimizer);
  const auto& states = optimizer.state();
  TensorMap all;
  visit_parameters(optimizer, model, [&](const auto& name, const auto& parameter, const auto&) {
    const auto found = states.find(parameter.unsafeGetTensorImpl());
    if (found == states.end()) return;
    for (auto& [field, tensor] : kind.tensors_of(*found->second)) all[name + "." + field] = tensor;
  });
  return all;
}

OptimizerStates optimizer_states(const TensorMap& tensors, const Optimizer& optimizer,
                                 const task::ModelState& model, const std::string& origin) {
  const Kind kind = kind_of(optimizer);
  TensorMap left = tensors;
  OptimizerStates states;
  visit_parameters(
      optimizer, model, [&](const auto& name, const auto& parameter, const auto& options) {
        auto own = take_prefixed(left, name + ".");
        if (own.empty()) return;  // never stepped: it had no gradient
        try {
          states[parameter.unsafeGetTensorImpl()] = kind.state_from(own, parameter, options);
        } catch (const StateFlaw& flaw) {
          throw Error(
              ErrorCode::InvalidArgument,
              fmt::format("{} does not fit this optimizer: for '{}', {}", origin, name, flaw.text));
        }
      });
  if (!left.empty()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} does not fit this optimizer: it has no parameter for '{}'", origin,
                            left.begin()->first));
  }
  return states;
}

TensorMap part_of_state(const TensorMap& tensors, const std::string& parameter, std::int64_t offset,
                        std::int64_t count) {
  TensorMap part;
  const auto prefix = parameter + ".";
  for (auto field = tensors.lower_bound(prefix);
       field != tensors.end() && field->first.starts_with(prefix); ++field) {
    const auto name = field->first.substr(prefix.size());
    if (name.find('.') != std::string::npos) continue;
    const auto& whole = field->second;
    part[name] = whole.dim() > 0 ? whole.flatten().narrow(0, offset, count).clone() : whole.clone();
  }
  return part;
}

TensorMap feedback_tensors(const TrainingState& state) {
  TensorMap tensors;
  for (const auto& [name, values] : state.error_feedback) {
    tensors[name] = torch::tensor(torch::ArrayRef<float>(values));
  }
  return tensors;
}

std::vector<comm::NamedValues> feedback_values(const TensorMap& tensors) {
  std::vector<comm::NamedValues> all;
  for (const auto& [name, tensor] : tensors) {
    const auto floats = tensor.to(torch::kFloat32).flatten().contiguous();
    const auto* data = floats.const_data_ptr<float>();
    all.push_back({name, {data, data + floats.numel()}});
  }
  return all;
}

}  // namespace bimetal::checkpoint
