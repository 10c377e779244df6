#pragma once
// Language models on text: each token from those before it.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bimetal/data/text/token_set.h"
#include "bimetal/job/job_config.h"
#include "bimetal/task/catalog/job_task.h"

namespace bimetal::task {

/// The model that a job names, or that lies in model.weights. `vocabulary`: the data's, taken where
/// model.vocabulary is 0. Errors: InvalidArgument for a name that is no language model's, sizes
/// that do not fit each other (models::check_language_model) or are given beside weights, and a
/// vocabulary smaller than the data's; those of checkpoint::read_huggingface_config.
models::LanguageModelConfig language_model_of(const job::ModelConfig& model,
                                              std::int64_t vocabulary);

/// A batch is {inputs, targets}, both int64 [b, block], of data::TokenSet; the model's output
/// {logits [b, block, vocabulary]}. The loss is the cross-entropy, over those tokens that are to be
/// foretold; its mean's exponential is the metric "perplexity".
class LanguageModeling final : public JobTask {
 public:
  /// `name`: what checkpoints call the model; `dtype`: "float32" or "float64"; `weights`: a Hugging
  /// Face folder whose parameters make_model() gives; empty: it draws them.
  /// Error(InvalidArgument) for blocks longer than the model's context.
  LanguageModeling(std::string name, const models::LanguageModelConfig& model, data::TokenSets data,
                   std::string dtype, std::filesystem::path weights = {});

  Model make_model() const override;
  std::optional<Model> make_model_by_units(const UnitMade& made) const override;
  std::shared_ptr<const Dataset> training() const override { return data_.train; }
  std::shared_ptr<const Dataset> evaluation() const override { return data_.test; }
  torch::Tensor loss_sum(const Values& outputs, const Values& batch) const override;
  std::vector<Metric> metrics() const override;
  std::vector<std::string> facts() const override;
  const checkpoint::ModelDescription& description() const override { return description_; }
  std::string counts() const override { return "tokens"; }

 private:
  checkpoint::ModelDescription description_;
  data::TokenSets data_;
  std::filesystem::path weights_;
};

}  // namespace bimetal::task
