#include "bimetal/train/measure/rehearsal.h"

#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/base/stopwatch.h"
#include "bimetal/device/device.h"
#include "bimetal/optim/optimizers.h"

namespace bimetal::train {

Rehearsal::Rehearsal(const job::TrainConfig& job, const task::Task& task,
                     const torch::Device& device, torch::Dtype dtype,
                     precision::Precision precision, bool update)
    : data_(task.training()),
      device_(device),
      model_(task.make_model()),
      compute_(
          task, model_, device,
          {.micro_batch = job.micro_batch, .precision = precision, .recompute = job.recompute}),
      update_(update) {
  model_.to(device, dtype);
  optimizer_ = optim::make_optimizer(job, model_.parameters());
  // The job's rate may be one at which a model without its warm-up bursts, whose numbers, too small
  // to be normal, take a CPU a hundred times as long.
  optim::set_learning_rate(*optimizer_, 0.0);
}

double Rehearsal::step(std::int64_t samples) {
  const auto batch = task::to_device(task::batch_of(*data_, 0, samples), device_);
  const double part = 1 / static_cast<double>(weight(samples));
  device::synchronize(device_);
  const Stopwatch watch;
  optimizer_->zero_grad();
  compute_.run(batch, [&](const torch::Tensor& loss_sum, bool) {
    loss_sum.backward(torch::full_like(loss_sum, part));
  });
  if (update_) optimizer_->step();
  device::synchronize(device_);
  return watch.seconds();
}

}  // namespace bimetal::train
