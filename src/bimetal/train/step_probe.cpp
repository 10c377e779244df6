#include "bimetal/train/step_probe.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <memory>

#include "bimetal/base/stopwatch.h"
#include "bimetal/device/device.h"
#include "bimetal/models/registry.h"
#include "bimetal/train/image_shape.h"
#include "bimetal/train/micro_batch.h"
#include "bimetal/train/optimizers.h"
#include "bimetal/train/out_of_memory.h"

namespace bimetal::train {
namespace {

constexpr std::int64_t kFirstBatch = 16;
// The larger of the two sizes is the first whose step takes this part of the budget: long enough to
// measure, short enough to repeat.
constexpr double kPartOfBudget = 0.1;

/// The job's model and optimizer, to be worn out.
class Rehearsal {
 public:
  Rehearsal(const Job& job, const data::ImageDataset& dataset, const ProbeOptions& options)
      : dataset_(dataset),
        options_(options),
        micro_batch_(job.train.micro_batch, options.device),
        model_(models::make_model(job.model.name, image_shape(dataset), job.model.hidden)) {
    model_->to(options.device, options.dtype);
    optimizer_ = make_optimizer(job.train, model_->parameters());
  }

  /// Seconds of one step on `batch` samples, emulated slowness included.
  double step(std::int64_t batch) {
    auto samples = data::make_batch(dataset_, torch::arange(batch), options_.dtype);
    samples = {samples.x.to(options_.device), samples.y.to(options_.device)};
    device::synchronize(options_.device);
    const Stopwatch watch;
    optimizer_->zero_grad();
    micro_batch_.for_each(samples, [&](const data::Batch& piece, bool /*last*/) {
      torch::nn::functional::cross_entropy(model_->forward(piece.x), piece.y).backward();
    });
    optimizer_->step();
    device::synchronize(options_.device);
    device::pause_for_speed(options_.speed, watch.seconds());
    return watch.seconds();
  }

 private:
  const data::ImageDataset& dataset_;
  ProbeOptions options_;
  MicroBatch micro_batch_;
  std::shared_ptr<models::Classifier> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

struct Mean {
  double sum = 0;
  int count = 0;

  void add(double value) {
    sum += value;
    ++count;
  }
  double value() const { return sum / count; }
};

// Means and not minima: a worker that the system grants a quarter of a core runs at full speed
// until its quarter is used up, and would look four times as fast by its best step.
balance::CostModel measure(Rehearsal& rehearsal, std::int64_t largest, double budget_seconds) {
  const Stopwatch watch;
  auto large = std::min(kFirstBatch, largest);
  rehearsal.step(large);  // kernels are chosen, memory is fetched
  while (large < largest && rehearsal.step(large) < kPartOfBudget * budget_seconds) {
    large = std::min(2 * large, largest);
  }
  const auto small = std::max<std::int64_t>(1, large / 4);
  Mean small_seconds, large_seconds;
  do {
    small_seconds.add(rehearsal.step(small));
    large_seconds.add(rehearsal.step(large));
  } while (watch.seconds() < budget_seconds);

  const auto per_step = large_seconds.value() / static_cast<double>(large);
  if (small == large) return {0.0, per_step};
  const auto beta =
      (large_seconds.value() - small_seconds.value()) / static_cast<double>(large - small);
  const auto alpha = large_seconds.value() - beta * static_cast<double>(large);
  // Noise can turn either negative; time in proportion to the batch is then the better guess.
  return alpha >= 0 && beta > 0 ? balance::CostModel(alpha, beta)
                                : balance::CostModel(0.0, per_step);
}

}  // namespace

balance::CostModel probe_step(const Job& job, const data::ImageDataset& dataset,
                              const ProbeOptions& options) {
  const auto budget = std::chrono::duration<double>(options.budget).count();
  auto largest = std::min(job.train.global_batch, dataset.size());
  for (; largest > 0; largest /= 4) {
    try {
      Rehearsal rehearsal(job, dataset, options);
      return measure(rehearsal, largest, budget);
    } catch (...) {
      if (!is_out_of_memory(std::current_exception())) throw;
    }
    release_cached_memory(options.device);
  }
  return {};
}

std::vector<balance::Device> probe_devices(comm::Group group, const Job& job,
                                           const data::ImageDataset& dataset,
                                           const ProbeOptions& options) {
  group.barrier().wait();
  const auto mine = probe_step(job, dataset, options);
  const std::array<double, 3> numbers = {mine.known() ? 1.0 : 0.0, mine.alpha(), mine.beta()};
  std::vector<double> all(numbers.size() * static_cast<std::size_t>(group.size()));
  group.all_gather(comm::buffer(std::span(numbers)), comm::buffer(std::span(all))).wait();

  std::vector<balance::Device> devices;
  for (std::size_t at = 0; at < all.size(); at += numbers.size()) {
    devices.push_back({.cost = all[at] != 0 ? balance::CostModel(all[at + 1], all[at + 2])
                                            : balance::CostModel()});
  }
  return devices;
}

}  // namespace bimetal::train
