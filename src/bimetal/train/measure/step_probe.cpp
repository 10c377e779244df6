#include "bimetal/train/measure/step_probe.h"

#include <c10/core/StreamGuard.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <limits>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/device/device.h"
#include "bimetal/device/graph.h"
#include "bimetal/device/host_allocator.h"
#include "bimetal/device/out_of_memory.h"
#include "bimetal/device/probe.h"
#include "bimetal/device/staging.h"
#include "bimetal/optim/optimizers.h"
#include "bimetal/train/measure/unit_measure.h"

namespace bimetal::train {

Rehearsal::Rehearsal(const job::TrainConfig& job, const task::Task& task, const Computing& on,
                     const task::Model& model)
    : data_(task.training()),
      device_(on.device),
      model_(model),
      compute_(task, model_, on.device,
               {.micro_batch = job.micro_batch,
                .precision = on.precision,
                .channels_last = on.channels_last,
                .recompute = job.recompute}) {}

Rehearsal::Rehearsal(const job::TrainConfig& job, const task::Task& task, const Computing& on,
                     bool update)
    : Rehearsal(job, task, on, task.make_model()) {
  model_.to(on.device, on.dtype);
  if (!update) return;
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
  for (const auto& parameter : model_.parameters()) parameter.mutable_grad().reset();
  compute_.run(batch, [&](const torch::Tensor& loss_sum, bool) {
    loss_sum.backward(torch::full_like(loss_sum, part));
  });
  if (optimizer_) optimizer_->step();
  device::synchronize(device_);
  return watch.seconds();
}

namespace {

constexpr std::int64_t kFirstBatch = 16;
// Not one sample: some layers have no statistics of one.
constexpr std::int64_t kFew = 2;
// Steps of the first batch that take longer, in budgets, are too long to be repeated.
constexpr double kLongestOfFirst = 4;
// If one step of each size must do: the longest time of the first batch, in seconds.
constexpr double kLongestBrief = 3;
// The larger of the two sizes is the first whose step takes this part of the budget: long enough to
// measure, short enough to repeat.
constexpr double kPartOfBudget = 0.1;

struct Times {
  double sum = 0, least = std::numeric_limits<double>::infinity();
  int count = 0;

  void add(double value) {
    sum += value;
    least = std::min(least, value);
    ++count;
  }
  double mean() const { return sum / count; }
};

/// Through two points. Noise can turn either number negative; time in proportion to the batch is
/// then the better guess.
balance::CostModel line(double small, double small_seconds, double large, double large_seconds) {
  if (small == large) return {0.0, large_seconds / large};
  const auto beta = (large_seconds - small_seconds) / (large - small);
  const auto alpha = large_seconds - beta * large;
  return alpha >= 0 && beta > 0 ? balance::CostModel(alpha, beta)
                                : balance::CostModel(0.0, large_seconds / large);
}

// The speed comes from means and not from minima: a worker that the system grants a quarter of a
// core runs at full speed until its quarter is used up, and would look four times as fast by its
// best step. The proportion of α to β comes from minima: a disturbance only ever makes a step
// longer, and a few long steps of the small size would look like a large α. Small steps escape
// disturbances best. That errs towards α = 0, and later steps will correct it.
balance::CostModel measure(Rehearsal& rehearsal, std::int64_t largest, double speed,
                           double budget_seconds, bool briefly) {
  const Stopwatch watch;
  const auto few = std::min(kFew, largest);
  auto large = std::min(kFirstBatch, largest);
  const auto step = [&](std::int64_t batch) {
    const double seconds = rehearsal.step(batch);
    const Stopwatch pausing;
    device::pause_for_speed(speed, seconds);
    return seconds + pausing.seconds();
  };
  const auto ratio = static_cast<double>(large) / static_cast<double>(few);
  step(few);  // kernels are chosen, memory is fetched
  const double least = step(few);
  if (briefly && watch.seconds() > budget_seconds / 2) {
    large = ratio * least > kLongestBrief ? std::min(2 * few, largest) : large;
    return line(static_cast<double>(rehearsal.weight(few)), least,
                static_cast<double>(rehearsal.weight(large)), step(large));
  }
  if (ratio * least > kLongestOfFirst * budget_seconds) {
    large = std::min(2 * few, largest);
  } else {
    step(large);
    while (large < largest && step(large) < kPartOfBudget * budget_seconds) {
      large = std::min(2 * large, largest);
    }
  }
  const auto small = std::max(few, large / 4);
  Times small_seconds, large_seconds;
  do {
    small_seconds.add(step(small));
    large_seconds.add(step(large));
  } while (watch.seconds() < budget_seconds);

  const auto weight = static_cast<double>(rehearsal.weight(large));
  const auto mean = large_seconds.mean(), slower = mean / large_seconds.least;
  return line(static_cast<double>(rehearsal.weight(small)),
              mean - slower * (large_seconds.least - small_seconds.least), weight, mean);
}

/// With options.model.
balance::CostModel measure_there(const job::TrainConfig& job, const task::Task& task,
                                 const ProbeOptions& options, std::int64_t largest, double budget) {
  Rehearsal rehearsal(job, task, options.on, *options.model);
  const auto passes = measure(rehearsal, largest, options.on.speed, budget, true);
  std::int64_t elements = 0;
  for (const auto& parameter : options.model->parameters()) {
    parameter.mutable_grad().reset();
    if (parameter.requires_grad()) elements += parameter.numel();
  }
  const auto update = static_cast<double>(elements) * update_seconds(job, elements, options.on);
  return {passes.alpha() + (options.update ? update : 0), passes.beta()};
}

}  // namespace

balance::CostModel probe_step(const job::TrainConfig& job, const task::Task& task,
                              const ProbeOptions& options) {
  if (options.skip || options.known.known()) return options.known;
  const auto budget = std::chrono::duration<double>(options.budget).count();
  auto largest = std::min(job.global_batch, task.training()->size());
  for (; largest > 0; largest /= 4) {
    balance::CostModel cost;
    const auto error = device::without_memory_for(options.on.device, [&] {
      if (options.model != nullptr) {
        cost = measure_there(job, task, options, largest, budget);
        return;
      }
      Rehearsal rehearsal(job, task, options.on, options.update);
      cost = measure(rehearsal, largest, options.on.speed, budget, false);
    });
    if (error) continue;
    // The next model has another layout in memory: this one's freed memory would stay beside it.
    device::give_back_freed_memory();
    return cost;
  }
  return {};
}

std::vector<balance::Device> probe_devices(comm::Group group, const job::TrainConfig& job,
                                           const task::Task& task, const ProbeOptions& options) {
  group.barrier().wait();
  const auto mine = probe_step(job, task, options);
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

std::vector<double> probe_products(comm::Group group, const torch::Device& device, double speed) {
  group.barrier().wait();
  const std::array<double, 1> mine = {speed * device::product_speed(device)};
  std::vector<double> all(static_cast<std::size_t>(group.size()));
  group.all_gather(comm::buffer(std::span(mine)), comm::buffer(std::span(all))).wait();
  if (std::ranges::find(all, 0.0) != all.end()) return std::vector<double>(all.size(), 1.0);
  return all;
}

namespace {

/// How many of the first samples weigh as much, or all of them.
std::int64_t samples_of_weight(const task::Dataset& data, std::int64_t weight) {
  std::int64_t samples = 0;
  while (weight > 0 && samples < data.size()) weight -= data.weight(samples++);
  return samples;
}

/// Not behind the job's own work, nor before it.
double step_aside(Rehearsal& rehearsal, std::int64_t samples, const torch::Device& device) {
  std::optional<c10::StreamGuard> aside;
  if (!device.is_cpu()) aside.emplace(device::stream_of_its_own(device));
  return rehearsal.step(samples);
}

}  // namespace

void ShadowBatch::begin(std::int64_t weight) try {
  if (under_way() || !fits_) return;
  if (!rehearsal_) {
    // Here and not on the other thread: the initial parameters are drawn from the generator that
    // the job's own random numbers come from.
    const auto before = checkpoint::random_state();
    rehearsal_.emplace(job_, task_, options_.on, options_.update);
    checkpoint::set_random_state(before);
    device::synchronize(options_.on.device);
  }
  const auto samples = samples_of_weight(*task_.training(), weight);
  weight_ = rehearsal_->weight(samples);
  running_ = std::async(std::launch::async, [this, samples] {
    return step_aside(*rehearsal_, samples, options_.on.device);
  });
} catch (...) {
  if (!device::is_out_of_memory(std::current_exception())) throw;
  fits_ = false;
  rehearsal_.reset();
}

progress::ShadowFigures ShadowBatch::take() try {
  if (!under_way() || running_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    return {};
  }
  return {.batch = weight_, .seconds = running_.get() / options_.on.speed};
} catch (...) {
  if (!device::is_out_of_memory(std::current_exception())) throw;
  fits_ = false;
  rehearsal_.reset();
  return {};
}

void ShadowBatch::rest() {
  if (rehearsal_ && !under_way()) rehearsal_.reset();
}

namespace {

constexpr std::chrono::milliseconds kDeviceBudget{500};

}  // namespace

RankDevice named_device(const torch::Device& device, const TrainerOptions& options) {
  RankDevice result;
  result.host = options.host_name;
  result.worker = job::to_string(options.worker);
  result.device = device.str();
  result.has_graphs = device::has_graphs(device);
  if (const auto copies = device::probe_copies(device)) {
    result.copies = {.latency_s = copies->latency_s,
                     .out_s_per_byte = 1 / copies->from_device_bytes_per_s,
                     .in_s_per_byte = 1 / copies->to_device_bytes_per_s};
  }
  return result;
}

RankDevice measured_device(const torch::Device& device, const TrainerOptions& options) {
  auto result = named_device(device, options);
  for (const auto& info : device::enumerate_devices()) {
    if (info.device != device) continue;
    result.name = info.name;
    result.memory_free_bytes = info.memory_free_bytes;
  }
  const auto speed = device::probe_device(device, kDeviceBudget);
  result.matmul_float32_gflops = speed.matmul_float32_gflops.value_or(0);
  result.matmul_half_gflops = speed.matmul_half_gflops.value_or(0);
  result.convolution_float32_gflops = speed.convolution_float32_gflops.value_or(0);
  result.memory_bytes_per_s = speed.memory_bytes_per_s.value_or(0);
  return result;
}

std::vector<RankDevice> gather_devices(comm::Group group, RankDevice mine, Deadline deadline) {
  return comm::all_gather_fields(
      std::move(group), std::move(mine), deadline, [](auto& wire, RankDevice& device) {
        wire(device.host, device.worker, device.device, device.name, device.memory_free_bytes,
             device.matmul_float32_gflops, device.matmul_half_gflops, device.has_graphs,
             device.may_be_lower, device.convolution_float32_gflops, device.memory_bytes_per_s,
             device.copies.latency_s, device.copies.out_s_per_byte, device.copies.in_s_per_byte);
      });
}

std::string short_name(const RankDevice& device, const std::vector<RankDevice>& all) {
  const auto& name = device.worker.starts_with("auto") ? device.device : device.worker;
  const bool one_host =
      std::ranges::all_of(all, [&](const RankDevice& other) { return other.host == device.host; });
  return one_host ? name : fmt::format("{} on {}", name, device.host);
}

}  // namespace bimetal::train
