#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "bimetal/job/deepspeed/reader.h"

namespace bimetal::job::deepspeed {
namespace {

constexpr std::array<std::string_view, 4> kOptimizers = {"Adam", "AdamW", "SGD", "Lamb"};
constexpr std::array<std::string_view, 3> kSchedulers = {"WarmupLR", "WarmupDecayLR",
                                                         "WarmupCosineLR"};

/// A section's "type", whose case does not matter, and its "params".
struct Typed {
  std::string type;
  Json params = Json::object();
};

Typed read_typed(const Value& section, std::span<const std::string_view> types) {
  const auto same = [](std::string_view a, std::string_view b) {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
    return std::ranges::equal(a, b, {}, lower, lower);
  };
  Typed typed;
  read_object(section, {{"type",
                         [&](const Value& value) {
                           for (const auto type : types) {
                             if (same(type, value.text())) typed.type = type;
                           }
                           if (typed.type.empty()) typed.type = value.one_of(types);
                         }},
                        {"params", [&](const Value& value) { typed.params = value.json; }},
                        without_effect("legacy_fusion", "one update serves all parameters")});
  if (typed.type.empty()) section.refuse("needs a \"type\"");
  return typed;
}

void read_betas(const Value& value, TrainConfig& train) {
  const auto betas = value.numbers();
  const auto fits = [](double beta) { return beta >= 0 && beta < 1; };
  if (betas.size() != 2 || !std::ranges::all_of(betas, fits)) {
    value.refuse("must be two numbers of at least 0 and less than 1");
  }
  train.beta1 = betas[0];
  train.beta2 = betas[1];
}

void read_rate(const Value& value, TrainConfig& train) {
  train.learning_rate = value.number_above(0);
  train.base_batch = 0;  // it is meant as it stands
}

/// The keys of every optimizer.
std::vector<Key> common_params(TrainConfig& train) {
  return {{"lr", [&](const Value& value) { read_rate(value, train); }},
          {"weight_decay", [&](const Value& value) { train.weight_decay = value.number(0); }},
          without_effect("fused", "updates are fused where the device has it"),
          without_effect("foreach", "updates are fused where the device has it"),
          must_be_off("maximize", "gradients are descended")};
}

/// The keys of Adam, AdamW and LAMB.
std::vector<Key> averaging_params(TrainConfig& train) {
  auto keys = common_params(train);
  keys.insert(keys.end(),
              {{"betas", [&](const Value& value) { read_betas(value, train); }},
               {"eps", [&](const Value& value) { train.epsilon = value.number_above(0); }},
               {"bias_correction",
                [](const Value& value) {
                  if (!value.flag())
                    value.unsupported("must be true: the averages are always corrected");
                }},
               without_effect("set_grad_none", "gradients are zeroed as is cheapest"),
               must_be_off("amsgrad", "Adam and AdamW are the plain ones"),
               must_be_off("max_grad_norm", "gradient_clipping limits the norm")});
  return keys;
}

std::vector<Key> adam_params(TrainConfig& train, bool& decoupled) {
  auto keys = averaging_params(train);
  keys.push_back({"adam_w_mode", [&](const Value& value) { decoupled = value.flag(); }});
  keys.push_back(without_effect("torch_adam", "there is one Adam, which takes the same steps"));
  return keys;
}

std::vector<Key> lamb_params(TrainConfig& train) {
  constexpr const char* kUnlimited = "LAMB's trust ratio has no limits here, as in its paper";
  auto keys = averaging_params(train);
  keys.push_back(without_effect("max_coeff", kUnlimited));
  keys.push_back(without_effect("min_coeff", kUnlimited));
  return keys;
}

std::vector<Key> sgd_params(TrainConfig& train) {
  auto keys = common_params(train);
  keys.insert(keys.end(), {{"momentum",
                            [&](const Value& value) {
                              train.momentum = value.number(0);
                              if (train.momentum >= 1) value.refuse("must be less than 1");
                            }},
                           must_be_off("dampening", "sgd has plain momentum"),
                           must_be_off("nesterov", "sgd has plain momentum")});
  return keys;
}

/// DeepSpeed's defaults for keys that are left out; "auto" is the job's value.
void take_defaults(const Json& params, TrainConfig& train) {
  const auto absent = [&](const char* name) { return !params.contains(name); };
  if (absent("lr")) train.learning_rate = 1e-3;
  if (absent("weight_decay")) train.weight_decay = 0;
  if (absent("momentum")) train.momentum = 0;
  if (absent("betas")) std::tie(train.beta1, train.beta2) = std::pair(0.9, 0.999);
  if (absent("eps")) train.epsilon = 1e-8;
}

/// The warm-up's keys, which all schedulers have.
std::vector<Key> warmup_params(TrainConfig& train) {
  static constexpr std::array<std::string_view, 2> kGrowth = {"log", "linear"};
  return {
      {"warmup_num_steps",
       [&](const Value& value) { train.warmup_steps = std::max<std::int64_t>(2, value.whole(1)); }},
      {"warmup_type", [&](const Value& value) { train.warmup = value.one_of(kGrowth); }},
      without_effect("last_batch_iteration", "a resumed job goes on where it was")};
}

Key total_steps(TrainConfig& train) {
  return {"total_num_steps", [&](const Value& value) { train.decay_steps = value.whole(1); }};
}

double share(const Value& value) {
  const double number = value.number(0);
  if (number > 1) value.refuse("must be at most 1");
  return number;
}

void read_rates_of_warmup(const Value& params, TrainConfig& train, bool falls) {
  auto keys = warmup_params(train);
  keys.push_back(
      {"warmup_min_lr", [&](const Value& value) { train.warmup_from = value.number(0); }});
  keys.push_back({"warmup_max_lr", [&](const Value& value) { read_rate(value, train); }});
  if (falls) {
    keys.push_back(total_steps(train));
    if (!params.json.contains("warmup_max_lr")) train.learning_rate = 1e-3;
  }
  if (!params.json.contains("warmup_min_lr")) train.warmup_from = 0;
  train.schedule = falls ? "linear" : "constant";
  train.min_learning_rate_ratio = 0;
  read_object(params, keys);
}

void read_cosine(const Value& params, TrainConfig& train) {
  auto keys = warmup_params(train);
  keys.push_back(total_steps(train));
  keys.push_back({"warmup_min_ratio", [&](const Value& value) {
                    train.warmup_from = share(value) * train.learning_rate;
                  }});
  keys.push_back(
      {"cos_min_ratio", [&](const Value& value) { train.min_learning_rate_ratio = share(value); }});
  if (!params.json.contains("warmup_min_ratio")) train.warmup_from = 0;
  if (!params.json.contains("cos_min_ratio")) train.min_learning_rate_ratio = 1e-4;
  train.schedule = "cosine";
  read_object(params, keys);
}

}  // namespace

void read_optimizer(const Value& section, TrainConfig& train) {
  const auto [type, json] = read_typed(section, kOptimizers);
  const Value params{json, section.origin, section.key + ".params", section.notify};
  if (json.is_object()) take_defaults(json, train);
  if (type == "SGD") {
    read_object(params, sgd_params(train));
    train.optimizer = "sgd";
  } else if (type == "Lamb") {
    read_object(params, lamb_params(train));
    train.optimizer = "lamb";
  } else {
    bool decoupled = true;
    read_object(params, adam_params(train, decoupled));
    train.optimizer = decoupled ? "adamw" : "adam";
  }
}

void read_scheduler(const Value& section, TrainConfig& train) {
  const auto [type, json] = read_typed(section, kSchedulers);
  const Value params{json, section.origin, section.key + ".params", section.notify};
  if (json.is_object()) {
    if (!json.contains("warmup_num_steps")) train.warmup_steps = 1000;
    if (!json.contains("warmup_type")) train.warmup = "log";
    if (type != "WarmupLR" && !json.contains("total_num_steps")) {
      params.refuse("needs \"total_num_steps\" (\"auto\": the job's)");
    }
  }
  // DeepSpeed asks its schedulers after each step, and numbers it from 0.
  train.warmup_lag = 2;
  train.decay_steps = 0;
  if (type == "WarmupCosineLR") {
    read_cosine(params, train);
  } else {
    read_rates_of_warmup(params, train, type == "WarmupDecayLR");
  }
}

}  // namespace bimetal::job::deepspeed
