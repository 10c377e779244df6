#include "bimetal/api/data_parallel.h"

#include <fmt/format.h>

#include <functional>
#include <optional>
#include <utility>

#include "bimetal/api/session.h"
#include "bimetal/base/error.h"
#include "bimetal/device/device.h"
#include "bimetal/predict/evaluate.h"
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
      : session(std::move(s)),
        owner(moved(std::move(module), session->device())),
        model(*owner),
        parallel(model, session->group(), options),
        update(parallel, options.timeout) {}

  Impl(std::shared_ptr<api::Session> s, std::shared_ptr<const task::Task> task,
       const ComputeOptions& options)
      : session(std::move(s)),
        computed(std::in_place, std::move(task), options, session->device()),
        model(computed->model),
        parallel(model, session->group(), options.parallel),
        update(parallel, options.parallel.timeout, update_options(options)) {
    update.set_statistics(computed->model.statistics());
  }

  using Work = std::function<double()>;  ///< forward and backward; the sum of the losses
  void step(const Work& work, torch::optim::Optimizer& optimizer);
  progress::RankFigures timed(const Work& work, const api::BalancedSteps& steps,
                              std::int64_t weight);
  Computed& need_task();

  std::shared_ptr<api::Session> session;
  std::shared_ptr<torch::nn::Module> owner;
  std::optional<Computed> computed;
  task::ModelState model;
  parallel::ReplicatedModel parallel;
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
  require_group(computed.model.sample_group(), steps.sample_group());
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
