#include "bimetal/api/data_parallel.h"

#include <utility>

#include "bimetal/api/session.h"
#include "bimetal/device/device.h"
#include "bimetal/train/collective_update.h"

namespace bimetal {
namespace {

std::shared_ptr<torch::nn::Module> moved(std::shared_ptr<torch::nn::Module> model,
                                         const torch::Device& device) {
  model->to(device);
  return model;
}

}  // namespace

struct DataParallel::Impl {
  Impl(std::shared_ptr<api::Session> s, std::shared_ptr<torch::nn::Module> model,
       const parallel::DataParallelOptions& options)
      : session(std::move(s)),
        parallel(moved(std::move(model), session->device()), session->group(), options),
        update(parallel, options.timeout) {}

  train::RankFigures compute(const torch::Tensor& mean_loss, const api::BalancedSteps& steps,
                             std::int64_t samples);

  std::shared_ptr<api::Session> session;
  parallel::DataParallel parallel;
  train::CollectiveUpdate update;
};

DataParallel::DataParallel(std::shared_ptr<torch::nn::Module> model, const Job& job,
                           parallel::DataParallelOptions options)
    : impl_(std::make_unique<Impl>(job.session_, std::move(model), options)) {}

DataParallel::~DataParallel() = default;

void DataParallel::step(const torch::Tensor& mean_loss, torch::optim::Optimizer& optimizer) {
  auto& steps = impl_->session->steps();
  const auto& samples = steps.open_plan().samples;
  impl_->parallel.begin_step(samples.total);
  const auto rank = static_cast<std::size_t>(impl_->parallel.group().rank());
  const auto mine = impl_->compute(mean_loss, steps, samples.counts[rank]);
  steps.end_step(impl_->update.run(steps.step(), mine, optimizer));
}

train::RankFigures DataParallel::Impl::compute(const torch::Tensor& mean_loss,
                                               const api::BalancedSteps& steps,
                                               std::int64_t samples) {
  train::RankFigures mine{.batch = samples};
  if (samples == 0) return mine;
  parallel.backward_last(mean_loss, samples);
  device::synchronize(session->device());
  mine.loss_sum = mean_loss.item<double>() * static_cast<double>(samples);
  device::pause_for_speed(session->speed(), steps.seconds() + update.update_seconds());
  mine.compute_seconds = steps.seconds() + update.update_seconds();
  return mine;
}

}  // namespace bimetal
