#include "bimetal/api/data_parallel.h"

#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "bimetal/api/job.h"
#include "bimetal/base/error.h"
#include "bimetal/device/device.h"
#include "bimetal/job/same_job.h"
#include "bimetal/predict/evaluate.h"
#include "bimetal/task/batch_norm.h"
#include "bimetal/task/exactness.h"
#include "bimetal/task/model_state.h"
#include "bimetal/train/collective_update.h"
#include "bimetal/train/compute.h"
#include "bimetal/train/setup.h"

namespace bimetal {
namespace {

std::shared_ptr<torch::nn::Module> moved(std::shared_ptr<torch::nn::Module> model,
                                         const torch::Device& device) {
  model->to(device);
  return model;
}

train::UpdateOptions update_options(const ComputeOptions& options) {
  train::UpdateOptions update{.limits = options.limits};
  if (options.precision == precision::Precision::float16) update.scaler.emplace();
  return update;
}

void require_group(std::int64_t of_model, std::int64_t of_batches) {
  if (of_batches % of_model == 0) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("the model normalises {} samples with each other, but batches are dealt "
                          "out in groups of {}: set BalancedOptions::sample_group to {}",
                          of_model, of_batches, of_model));
}

/// What all ranks must have alike beside the tensors' shapes.
std::vector<std::string> facts_of(const char* made_of, std::uint64_t seed,
                                  const ComputeOptions& options,
                                  const parallel::ReplicatedModelOptions& parallel) {
  return {
      fmt::format("DataParallel of a {}", made_of),
      fmt::format("seed = {}", seed),
      fmt::format("precision = {}", precision::name_of(options.precision)),
      fmt::format("limits.norm = {}", options.limits.norm),
      fmt::format("limits.value = {}", options.limits.value),
      fmt::format("bucket_bytes = {}", parallel.bucket_bytes),
      fmt::format("first_bucket_bytes = {}", parallel.first_bucket_bytes),
      fmt::format("compression = {}", static_cast<int>(parallel.compression.compression.scheme))};
}

std::shared_ptr<api::Session> agreed(std::shared_ptr<api::Session> session,
                                     const std::vector<std::string>& facts,
                                     std::chrono::milliseconds timeout) {
  job::require_same_facts(session->group(), facts, timeout);
  return session;
}

std::vector<task::BatchStatistics> statistics_of(const torch::nn::Module& module) {
  std::vector<task::BatchStatistics> statistics;
  for (const auto& part : module.modules()) {
    const auto* norm = part->as<task::GroupedBatchNorm>();
    if (!norm) continue;
    auto& of_one = statistics.emplace_back(norm->statistics());
    of_one.sums.set_data(of_one.sums.to(of_one.mean.options()));  // no buffer, so that it stayed
  }
  return statistics;
}

}  // namespace

struct DataParallel::Impl {
  /// A task, and how this rank computes it.
  struct Computed {
    Computed(std::shared_ptr<const task::Task> t, const ComputeOptions& options,
             const torch::Device& device)
        : task(std::move(t)),
          model(train::make_seeded_model(*task, options.seed, {.device = device})),
          compute(*task, model, device,
                  {.micro_batch = options.micro_batch,
                   .precision = options.precision,
                   .recompute = options.recompute}),
          seed(options.seed) {
      model.train();
    }

    std::shared_ptr<const task::Task> task;
    task::Model model;
    train::Compute compute;
    std::uint64_t seed;
  };

  Impl(std::shared_ptr<api::Session> s, std::shared_ptr<torch::nn::Module> module,
       const parallel::ReplicatedModelOptions& options)
      : session(agreed(std::move(s), facts_of("module", 0, {}, options), options.timeout)),
        owner(moved(std::move(module), session->device())),
        statistics(statistics_of(*owner)),
        model(*owner),
        parallel(model, session->group(), options),
        own_tensors(model),
        update(parallel, options.timeout) {
    update.set_statistics(statistics);
  }

  Impl(std::shared_ptr<api::Session> s, std::shared_ptr<const task::Task> task,
       const ComputeOptions& options)
      : session(agreed(std::move(s), facts_of("task", options.seed, options, options.parallel),
                       options.parallel.timeout)),
        computed(std::in_place, std::move(task), options, session->device()),
        statistics(computed->model.statistics()),
        model(computed->model),
        parallel(model, session->group(), options.parallel),
        own_tensors(model),
        update(parallel, options.parallel.timeout, update_options(options)) {
    task::require_exact(computed->model);
    update.set_statistics(statistics);
  }

  using Work = std::function<double()>;  ///< forward and backward; the sum of the losses
  void step(const Work& work, torch::optim::Optimizer& optimizer);
  progress::RankFigures timed(const Work& work, const api::BalancedSteps& steps,
                              std::int64_t weight);
  Computed& need_task();

  std::shared_ptr<api::Session> session;
  std::shared_ptr<torch::nn::Module> owner;
  std::optional<Computed> computed;
  std::vector<task::BatchStatistics> statistics;
  task::ModelState model;
  parallel::ReplicatedModel parallel;
  api::OwnTensors own_tensors;
  train::CollectiveUpdate update;
};

DataParallel::DataParallel(std::shared_ptr<torch::nn::Module> model, const Job& job,
                           parallel::ReplicatedModelOptions options)
    : impl_(std::make_unique<Impl>(job.session_, std::move(model), options)) {}

DataParallel::DataParallel(std::shared_ptr<const task::Task> task, const Job& job,
                           ComputeOptions options)
    : impl_(std::make_unique<Impl>(job.session_, std::move(task), options)) {}

DataParallel::~DataParallel() = default;

const task::ModelState& DataParallel::model() const noexcept {
  return impl_->model;
}

std::vector<torch::Tensor> DataParallel::parameters() const {
  return task::tensors_of(impl_->model.parameters);
}

void DataParallel::step(torch::optim::Optimizer& optimizer) {
  auto& computed = impl_->need_task();
  auto& steps = impl_->session->steps();
  const auto compute = [&] {
    const auto& samples = steps.open_plan().samples;
    const auto mine = samples.of_rank(impl_->parallel.group().rank());
    return computed.compute.run(steps.batch().values, train::backward_into(impl_->parallel),
                                task::Draws::of(computed.seed, samples.epoch, mine));
  };
  impl_->step(compute, optimizer);
}

void DataParallel::step(const torch::Tensor& mean_loss, torch::optim::Optimizer& optimizer) {
  const auto& samples = impl_->session->steps().open_plan().samples;
  const auto weight = samples.weights[static_cast<std::size_t>(impl_->parallel.group().rank())];
  impl_->step(
      [&] {
        impl_->parallel.backward_last(mean_loss, weight);
        device::synchronize(impl_->session->device());
        return mean_loss.item<double>() * static_cast<double>(weight);
      },
      optimizer);
}

progress::Evaluation DataParallel::evaluate() {
  const auto& computed = impl_->need_task();
  const auto& group = impl_->parallel.group();
  const std::vector<double> equally(static_cast<std::size_t>(group.size()), 0.0);
  return predict::evaluate(*computed.task, computed.model, group, equally,
                           {.device = impl_->session->device(), .speed = impl_->session->speed()});
}

DataParallel::Impl::Computed& DataParallel::Impl::need_task() {
  if (computed) return *computed;
  throw Error(ErrorCode::InvalidArgument,
              "this DataParallel was made of a module: make it of a Task, or give step() the loss");
}

void DataParallel::Impl::step(const Work& work, torch::optim::Optimizer& optimizer) {
  auto& steps = session->steps();
  const auto& samples = steps.open_plan().samples;
  for (const auto& of_one : statistics) require_group(of_one.group, steps.sample_group());
  if (owner) task::require_exact(*owner);
  own_tensors.require_as_they_were();
  own_tensors.require_all_of(optimizer);
  own_tensors.require_untouched();
  const api::OwnTensors::AfterStep note(own_tensors);
  parallel.begin_step(samples.weight(), update.stages().loss_scale());
  const auto rank = static_cast<std::size_t>(parallel.group().rank());
  const auto mine = timed(work, steps, samples.weights[rank]);
  steps.end_step(update.run(steps.step(), mine, optimizer));
}

progress::RankFigures DataParallel::Impl::timed(const Work& work, const api::BalancedSteps& steps,
                                                std::int64_t weight) {
  progress::RankFigures mine{.batch = weight};
  if (weight == 0) return mine;
  mine.loss_sum = work();
  device::pause_for_speed(session->speed(), steps.seconds() + update.update_seconds());
  mine.compute_seconds = steps.seconds() + update.update_seconds();
  return mine;
}

}  // namespace bimetal

namespace bimetal::api {
namespace {

constexpr auto kMakeIt = "make it of DataParallel::parameters(), after DataParallel was made";

}  // namespace

OwnTensors::OwnTensors(const task::ModelState& model) {
  task::require_distinct_names(model);  // which nobody would want to hear of at the end alone
  for (const auto& named : model.parameters) {
    known_.insert(named.tensor.unsafeGetTensorImpl());
    (named.tensor.requires_grad() ? trained_ : frozen_).push_back(named);
  }
  left_.resize(trained_.size());
}

// Frozen on one rank alone, a tensor would be moved by the gradient of the others' samples; and of
// one that is trained only now no rank sends its gradient.
void OwnTensors::require_as_they_were() const {
  const auto require = [](const std::vector<task::NamedTensor>& tensors, bool trained,
                          const char* what) {
    for (const auto& [name, tensor] : tensors) {
      if (tensor.requires_grad() == trained) continue;
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("'{}' was {} after DataParallel was made of the model: make another "
                              "DataParallel of it, on all ranks, and go on with that",
                              name, what));
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
                    fmt::format("the optimizer has a tensor of shape {} that is not the model's, "
                                "whose gradients no rank would send: {}",
                                c10::str(tensor.sizes()), kMakeIt));
      }
      trains |= tensor.requires_grad();
    }
  }
  if (trains || trained_.empty()) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("the optimizer has none of the model's trained tensors: {}", kMakeIt));
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
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("'{}' has a gradient that DataParallel::step has not made and would "
                            "drop: add that loss to the one that step() gets, and leave its "
                            "backward() to step()",
                            trained_[i].name));
  }
}

void OwnTensors::note_gradients() {
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    const auto& gradient = trained_[i].tensor.grad();
    left_[i].reset();
    if (gradient.defined()) left_[i].emplace(gradient.getIntrusivePtr(), gradient._version());
  }
}

}  // namespace bimetal::api
