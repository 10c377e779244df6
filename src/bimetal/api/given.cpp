#include "bimetal/api/given.h"

#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <string>
#include <utility>

#include "bimetal/api/task.h"
#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/checkpoint/model_file.h"
#include "bimetal/checkpoint/open_checkpoint.h"
#include "bimetal/checkpoint/optimizer_state.h"
#include "bimetal/checkpoint/slices/shared_reader.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/parallel/shard/flat_parameters.h"
#include "bimetal/task/dropout.h"
#include "bimetal/task/unit.h"

namespace bimetal::api {
namespace {

Batch batch_of(const task::Values& values) {
  return {.values = values, .x = values.front(), .y = values.back()};
}

void require_number(const torch::Tensor& tensor, const char* what) {
  if (tensor.defined() && tensor.numel() == 1) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} has to be one number for a piece of a batch", what));
}

}  // namespace

torch::Tensor GivenLoss::loss_sum(const task::Values& outputs, const task::Values& batch) const {
  if (sums_ != nullptr) return sums_->loss_sum(outputs, batch);
  auto piece = batch_of(batch);
  piece.epoch = steps_->open_plan().samples.epoch + 1;
  piece.step = steps_->step();
  const auto mean = (*mean_)(outputs, piece);
  require_number(mean, "the mean loss");
  std::int64_t weight = 0;
  for (const auto sample : task::current_draws()->samples) {
    weight += steps_->dataset().weight(sample);
  }
  // A sum may exceed what float16 can hold.
  const bool wide = mean.scalar_type() == torch::kFloat64;
  return mean.to(wide ? torch::kFloat64 : torch::kFloat32) * static_cast<double>(weight);
}

std::vector<task::Metric> GivenLoss::metrics() const {
  return sums_ != nullptr ? sums_->metrics() : std::vector<task::Metric>();
}

torch::Tensor GivenSums::loss_sum(const task::Values& outputs, const task::Values& batch) const {
  last_ = sums_(outputs, batch_of(batch));
  if (last_.size() != names_.size() + 1) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("evaluate() has {} metrics, and its function gave {} sums: give the "
                            "loss's first and then one for each metric",
                            names_.size(), last_.size()));
  }
  for (const auto& sum : last_) require_number(sum, "each sum of evaluate()");
  return last_.front();
}

std::vector<task::Metric> GivenSums::metrics() const {
  std::vector<task::Metric> metrics;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    metrics.push_back(
        {.name = names_[i], .sum = [this, i](const auto&, const auto&) { return last_[i + 1]; }});
  }
  return metrics;
}

task::Model hand_on(const task::Model& model) {
  task::Unit unit;
  unit.name = "function";
  unit.forward = [](const task::Values& inputs) { return inputs; };
  unit.statistics = model.statistics();
  return {{unit}};
}

EvaluationMode::EvaluationMode(const task::Model& model) {
  for (const auto& unit : model.units) {
    const auto* training = unit.set_training.target<task::ModuleTraining>();
    if (training == nullptr) continue;
    for (const auto& module : training->module->modules()) {
      modes_.emplace_back(module, module->is_training());
    }
  }
  model.eval();
}

// A module hands its mode on to its own, which come after it.
EvaluationMode::~EvaluationMode() {
  for (const auto& [module, training] : modes_) module->train(training);
}

void require_values(const task::ModelState& model) {
  for (const auto& [name, tensor] : model.parameters) {
    if (!tensor.has_storage() || !parallel::shard::is_hollow(tensor)) continue;
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("'{}' has no values here any more: another rank of an earlier Pipeline "
                            "or DataParallel has them; make the model anew",
                            name));
  }
}

OwnTensors::OwnTensors(const char* whose, const task::ModelState& model,
                       const std::vector<torch::Tensor>& optimized)
    : whose_(whose) {
  task::require_distinct_names(model);  // which nobody would want to hear of at the end alone
  for (const auto& tensor : optimized) known_.insert(tensor.unsafeGetTensorImpl());
  for (const auto& named : model.parameters) {
    (named.tensor.requires_grad() ? trained_ : frozen_).push_back(named);
  }
  left_.resize(trained_.size());
}

void OwnTensors::require_usable(const torch::optim::Optimizer& optimizer) const {
  require_as_they_were();
  require_all_of(optimizer);
  require_untouched();
}

// Frozen on one rank alone, a tensor would be moved by the gradient of the others' samples; and of
// one that is trained only now no rank sends its gradient.
void OwnTensors::require_as_they_were() const {
  const auto require = [this](const std::vector<task::NamedTensor>& tensors, bool trained,
                              const char* what) {
    for (const auto& [name, tensor] : tensors) {
      if (tensor.requires_grad() == trained) continue;
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("'{0}' was {1} after {2} was made of the model: make another {2} of "
                              "it, on all ranks, and go on with that",
                              name, what, whose_));
    }
  };
  require(trained_, true, "frozen (requires_grad)");
  require(frozen_, false, "set to be trained (requires_grad)");
}

void OwnTensors::require_all_of(const torch::optim::Optimizer& optimizer) const {
  bool trains = false;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& tensor : group.params()) {
      if (!known_.contains(tensor.unsafeGetTensorImpl())) {
        throw Error(ErrorCode::InvalidArgument,
                    fmt::format("the optimizer has a tensor of shape {0} that is not the model's, "
                                "whose gradients no rank would send: make it of {1}::parameters(), "
                                "after {1} was made",
                                c10::str(tensor.sizes()), whose_));
      }
      trains |= tensor.requires_grad();
    }
  }
  if (trains || trained_.empty()) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("the optimizer has none of the model's trained tensors: make it of "
                          "{0}::parameters(), after {0} was made",
                          whose_));
}

void OwnTensors::require_untouched() const {
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    const auto& gradient = trained_[i].tensor.grad();
    const auto& left = left_[i];
    if (!gradient.defined()) continue;
    const bool same = left && left->version == gradient._version() &&
                      left->gradient._unsafe_get_target() == gradient.unsafeGetTensorImpl();
    if (same) continue;
    if (gradient.count_nonzero().item<std::int64_t>() == 0) continue;  // Optimizer::zero_grad
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("'{}' has a gradient that {}::step has not made and would drop: add that "
                    "loss to the one that step() gets, and leave its backward() to step()",
                    trained_[i].name, whose_));
  }
}

void OwnTensors::note_gradients() {
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    const auto& gradient = trained_[i].tensor.grad();
    left_[i].reset();
    if (gradient.defined()) left_[i].emplace(gradient.getIntrusivePtr(), gradient._version());
  }
}

std::filesystem::path save_kept(const comm::Group& group, const job::CheckpointConfig& config,
                                const KeptOfModel& kept, const torch::optim::Optimizer& optimizer,
                                checkpoint::TrainingState state,
                                std::chrono::milliseconds timeout) {
  auto own = train::own_slices(kept.pieces, optimizer, kept.gives);
  if (kept.gives_uncut) train::add_whole(own, kept.uncut);
  own.written = kept.looked_at;
  std::filesystem::path path;
  comm::do_watched(group, timeout, "a checkpoint was being saved", [&] {
    path =
        checkpoint::save_slices(group, config, own, checkpoint::optimizer_facts(optimizer), state);
  });
  return path;
}

checkpoint::TrainingState take_kept(const comm::Group& group, const std::filesystem::path& from,
                                    const KeptOfModel& kept, torch::optim::Optimizer& optimizer) {
  checkpoint::SharedReader saved(group, from);
  const auto facts = checkpoint::optimizer_facts(optimizer);
  saved.on_rank_0([&](const checkpoint::OpenCheckpoint& opened) {
    checkpoint::require_same_kind(opened, facts);
    checkpoint::require_same_model(opened, kept.model);
    checkpoint::log_changed_settings(opened, facts);
  });
  train::take_whole(saved, kept.uncut);
  train::require_known_states(saved, kept.trained);
  train::take_pieces(saved, kept.pieces, optimizer, kept.looked_at);
  return saved.state();
}

std::optional<std::filesystem::path> checkpoints_in(const comm::Group& group,
                                                    const std::filesystem::path& dir) {
  const auto found = comm::from_rank_0(
      group, [&] { return std::string(checkpoint::last_save(dir).sequence > 0 ? "yes" : ""); },
      Deadline::after(checkpoint::kFileTimeout));
  return found.empty() ? std::nullopt : std::optional(dir);
}

std::uint64_t next_term(const comm::Group& group, const std::filesystem::path& dir) {
  const auto term = comm::from_rank_0(
      group, [&] { return std::to_string(checkpoint::last_save(dir).term + 1); },
      Deadline::after(checkpoint::kFileTimeout));
  return std::stoull(term);
}

void save_on_rank_0(const comm::Group& group, const task::ModelState& model,
                    const std::filesystem::path& path) {
  comm::on_rank_0(
      group, [&] { checkpoint::save_model(model, path); },
      Deadline::after(checkpoint::kFileTimeout));
}

}  // namespace bimetal::api

namespace bimetal {
namespace {

void require(bool right, const std::string& why) {
  if (!right) throw Error(ErrorCode::InvalidArgument, "TensorDataset: " + why);
}

}  // namespace

void save(const task::ModelState& model, const std::filesystem::path& path) {
  checkpoint::save_model(model, path);
}

void load(const task::ModelState& model, const std::filesystem::path& path) {
  checkpoint::load_model(model, path);
}

TensorDataset::TensorDataset(Values tensors, std::vector<std::int64_t> weights)
    : tensors_(std::move(tensors)), weights_(std::move(weights)) {
  require(!tensors_.empty(), "no tensors");
  for (const auto& tensor : tensors_) {
    const bool fits = tensor.defined() && tensor.dim() > 0 && tensor.size(0) == size();
    require(fits && size() > 0, "the first dimension of each tensor has to be the samples");
    require(tensor.is_cpu(), "tensors have to lie on the CPU: batches go to the job's device");
  }
  require(weights_.empty() || std::ssize(weights_) == size(),
          fmt::format("{} weights for {} samples: give one for each", weights_.size(), size()));
  require(std::ranges::all_of(weights_, [](std::int64_t weight) { return weight >= 1; }),
          "a weight is at least 1");
}

Values TensorDataset::batch(std::span<const std::int64_t> samples) const {
  const torch::NoGradGuard no_grad;
  const auto rows = torch::tensor(torch::ArrayRef<std::int64_t>(samples), torch::kInt64);
  Values batch;
  for (const auto& tensor : tensors_) batch.push_back(tensor.index_select(0, rows));
  return batch;
}

}  // namespace bimetal
