#include "bimetal/task/catalog/language_modeling.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cmath>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/huggingface.h"
#include "bimetal/task/tensor_ranks.h"

namespace bimetal::task {
namespace {

std::string text_fact(const char* name, const data::TokenSet* set) {
  if (!set) return fmt::format("{} text = none", name);
  return fmt::format("{} text = {} samples of up to {} tokens, digest {}", name, set->size(),
                     set->block(), set->file().digest());
}

models::LanguageModelSizes sizes_of(const job::ModelConfig& model) {
  return {.layers = model.layers,
          .width = model.width,
          .heads = model.heads,
          .kv_heads = model.kv_heads,
          .hidden = model.hidden,
          .context = model.context,
          .vocabulary = model.vocabulary};
}

void require_language_model(const std::string& name) {
  if (models::is_language_model(name)) return;
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format("model.name = \"{}\" cannot learn data.name = \"tokens\": take one of {}, "
                  "or a data set of images",
                  name, fmt::join(models::language_model_names(), ", ")));
}

/// Of the folder that a model begins from no size can be another.
models::LanguageModelConfig architecture_of_weights(const job::ModelConfig& model) {
  for (const auto size : {model.layers, model.width, model.heads, model.kv_heads, model.hidden,
                          model.context, model.vocabulary}) {
    if (size == 0) continue;
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("model.weights = \"{}\" has sizes of its own, those of its config.json: "
                    "leave layers, width, heads, kv_heads, hidden, context and vocabulary "
                    "out",
                    model.weights));
  }
  return checkpoint::read_huggingface_config(model.weights);
}

models::LanguageModelConfig architecture_of(const job::ModelConfig& model,
                                            std::int64_t vocabulary) {
  if (!model.weights.empty()) return architecture_of_weights(model);
  require_language_model(model.name);
  auto config = models::resized(models::language_preset(model.name), sizes_of(model));
  if (model.vocabulary == 0) config.vocabulary = vocabulary;
  return config;
}

}  // namespace

models::LanguageModelConfig language_model_of(const job::ModelConfig& model,
                                              std::int64_t vocabulary) {
  auto config = architecture_of(model, vocabulary);
  config.dropout = model.dropout;
  models::check_language_model(config);
  if (config.vocabulary < vocabulary) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("the text's tokenizer has {} tokens, but the model knows {}: {}", vocabulary,
                    config.vocabulary,
                    model.weights.empty()
                        ? "leave model.vocabulary out, or take at least as many"
                        : "tokenize the text with the tokenizer that belongs to " + model.weights));
  }
  return config;
}

LanguageModeling::LanguageModeling(std::string name, const models::LanguageModelConfig& model,
                                   data::TokenSets data, std::string dtype,
                                   std::filesystem::path weights)
    : description_{.name = std::move(name), .dtype = std::move(dtype), .language = model},
      data_(std::move(data)),
      weights_(std::move(weights)) {
  if (data_.train->block() > model.context) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("data.block = {} is more than the {} tokens that the model looks at: "
                            "leave it out, or take a larger model.context",
                            data_.train->block(), model.context));
  }
}

Model LanguageModeling::make_model() const {
  auto model = checkpoint::draw_described_model(description_);
  if (!weights_.empty()) checkpoint::load_huggingface(model, weights_);
  return model;
}

std::optional<Model> LanguageModeling::make_model_by_units(const UnitMade& made) const {
  if (weights_.empty()) return checkpoint::draw_described_model(description_, made);
  checkpoint::HuggingFaceWeights weights(weights_);
  auto model = checkpoint::draw_described_model(description_, [&](const Unit& unit) {
    weights.read_into(unit.parameters);
    made(unit);
  });
  weights.require_fitting(model);
  return model;
}

torch::Tensor LanguageModeling::loss_sum(const Values& outputs, const Values& batch) const {
  return cross_entropy_sum(outputs.front().flatten(0, 1), batch.back().flatten(),
                           description_.language->vocabulary, data::kNoTarget);
}

std::vector<Metric> LanguageModeling::metrics() const {
  return {{.name = "perplexity", .of_mean = [](double mean) { return std::exp(mean); }}};
}

std::vector<std::string> LanguageModeling::facts() const {
  return {text_fact("training", data_.train.get()), text_fact("test", data_.test.get())};
}

}  // namespace bimetal::task
