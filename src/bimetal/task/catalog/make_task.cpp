#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/huggingface.h"
#include "bimetal/data/held_out.h"
#include "bimetal/data/text/token_set.h"
#include "bimetal/device/device.h"
#include "bimetal/job/job_config.h"
#include "bimetal/models/language/language_model.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/task/tensor_ranks.h"

namespace bimetal::task {
namespace {

// Language models on text: each token from those before it.

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

/// The architecture of the folder that a model begins from. No size may differ from it.
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

/// The model that a job names, or that lies in model.weights. `vocabulary`: the data's, taken where
/// model.vocabulary is 0. Errors: InvalidArgument for a name that is no language model's, sizes
/// that do not fit each other (models::check_language_model) or are given beside weights, and a
/// vocabulary smaller than the data's; those of checkpoint::read_huggingface_config.
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

// Any task, but that a part of its training data is held out.

/// Drawn after the split: a sample that is trained on several times must not be judged by.
std::vector<std::int64_t> drawn(std::vector<std::int64_t> samples, std::uint64_t seed) {
  if (seed == 0) return samples;
  auto chosen = data::draw_samples(std::ssize(samples), seed);
  for (auto& sample : chosen) sample = samples[static_cast<std::size_t>(sample)];
  return chosen;
}

class HeldOutTask final : public JobTask {
 public:
  HeldOutTask(std::shared_ptr<const JobTask> whole, const job::DataConfig& config)
      : whole_(std::move(whole)) {
    auto parts =
        data::hold_out(whole_->training()->size(), config.validation, config.validation_seed);
    notice_ = fmt::format("{} of the {} training samples are held out for validation",
                          parts.validation.size(), whole_->training()->size());
    training_ = std::make_shared<data::Subset>(
        whole_->training(), drawn(std::move(parts.training), config.bootstrap_seed));
    validation_ =
        std::make_shared<data::Subset>(whole_->training_unchanged(), std::move(parts.validation));
  }

  Model make_model() const override { return whole_->make_model(); }
  std::optional<Model> make_model_by_units(const UnitMade& made) const override {
    return whole_->make_model_by_units(made);
  }
  std::shared_ptr<const Dataset> training() const override { return training_; }
  std::shared_ptr<const Dataset> validation() const override { return validation_; }
  std::shared_ptr<const Dataset> evaluation() const override { return whole_->evaluation(); }
  Values inputs(const Values& batch) const override { return whole_->inputs(batch); }
  torch::Tensor loss_sum(const Values& outputs, const Values& batch) const override {
    return whole_->loss_sum(outputs, batch);
  }
  std::vector<Metric> metrics() const override { return whole_->metrics(); }
  std::vector<std::string> facts() const override { return whole_->facts(); }
  const checkpoint::ModelDescription& description() const override { return whole_->description(); }
  std::unique_ptr<torch::optim::Optimizer> make_optimizer(
      const std::vector<torch::Tensor>& parameters) const override {
    return whole_->make_optimizer(parameters);
  }
  bool has_optimizer() const override { return whole_->has_optimizer(); }
  std::string counts() const override { return whole_->counts(); }
  std::vector<std::string> notices() const override {
    auto all = whole_->notices();
    all.push_back(notice_);
    return all;
  }

 private:
  std::shared_ptr<const JobTask> whole_;
  std::shared_ptr<const Dataset> training_, validation_;
  std::string notice_;
};

/// `whole` with data.validation of its training samples, chosen by data.validation_seed, as its
/// validation(); the rest is its training(), of which data.bootstrap_seed draws. Its facts() are of
/// all of the data: which part is held out follows from the job. Error(InvalidArgument) for fewer
/// than two training samples.
std::shared_ptr<const JobTask> hold_out(std::shared_ptr<const JobTask> whole,
                                        const job::DataConfig& config) {
  return std::make_shared<HeldOutTask>(std::move(whole), config);
}

std::shared_ptr<const JobTask> make_language_modeling(const job::JobConfig& job,
                                                      const data::DatasetFiles& files) {
  // The model's sizes do not hang on the data, but for the vocabulary: it is known once the data
  // is.
  const auto context = language_model_of(job.model, 1).context;
  const bool of_images = job.data.augment || !job.data.mean.empty() || !job.data.stddev.empty();
  if (job.data.bootstrap_seed != 0 || of_images) {
    throw Error(
        ErrorCode::InvalidArgument,
        "data.bootstrap_seed, data.augment, data.mean and data.stddev are for images: leave "
        "them out for data.name = \"tokens\"");
  }
  auto data =
      data::load_tokens(files, job.data.block > 0 ? job.data.block : context, job.data.documents);
  const auto model = language_model_of(job.model, data.train->vocabulary());
  return std::make_shared<LanguageModeling>(job.model.name, model, std::move(data), job.train.dtype,
                                            job.model.weights);
}

data::LoadOptions load_options(const job::DataConfig& config) {
  if (config.name != data::kImageFolders && (config.image_size > 0 || config.skip_broken)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("data.image_size and data.skip_broken are for folders of images: leave "
                            "them out for data.name = \"{}\"",
                            config.name));
  }
  data::LoadOptions options{
      .skip_broken = config.skip_broken, .mean = config.mean, .stddev = config.stddev};
  if (config.image_size > 0) options.image_size = config.image_size;
  return options;
}

std::shared_ptr<const JobTask> make_image_classification(const job::JobConfig& job,
                                                         const data::DatasetFiles& files) {
  if (models::is_language_model(job.model.name)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("model.name = \"{}\" is a language model, but data.name = \"{}\" is "
                            "images: take data.name = \"tokens\", or a model of images",
                            job.model.name, job.data.name));
  }
  auto data = data::load_dataset(files, load_options(job.data));
  const bool draws =
      job.data.bootstrap_seed != 0 && job.data.validation == 0;  // else hold_out does
  if (draws) data.train = data::bootstrap(data.train, job.data.bootstrap_seed);
  return std::make_shared<ImageClassification>(
      job.model.name, job.model.hidden, std::move(data), job.train.dtype,
      job.data.augment ? data::Augment::Yes : data::Augment::No, job::sample_group(job));
}

std::shared_ptr<const JobTask> make_whole_task(const job::JobConfig& job,
                                               const data::DatasetFiles& files) {
  if (is_python_task(job)) return make_python_task(job);
  return job.data.name == "tokens" ? make_language_modeling(job, files)
                                   : make_image_classification(job, files);
}

}  // namespace

std::shared_ptr<const JobTask> make_task(const job::JobConfig& job,
                                         const data::DatasetFiles& files) {
  auto task = make_whole_task(job, files);
  return job.data.validation > 0 ? hold_out(std::move(task), job.data) : task;
}

}  // namespace bimetal::task
