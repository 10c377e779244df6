#include "bimetal/task/catalog/held_out_task.h"

#include <fmt/format.h>

#include <utility>

#include "bimetal/data/held_out.h"

namespace bimetal::task {
namespace {

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

}  // namespace

std::shared_ptr<const JobTask> hold_out(std::shared_ptr<const JobTask> whole,
                                        const job::DataConfig& config) {
  return std::make_shared<HeldOutTask>(std::move(whole), config);
}

}  // namespace bimetal::task
