#include "bimetal/train/choose_precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/device/out_of_memory.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/train/measure/step_probe.h"

namespace bimetal::train {
namespace {

using precision::Precision;

constexpr std::int64_t kSamples = 32;
constexpr int kMostSteps = 10;
constexpr double kSeconds = 0.5;  ///< for each precision
/// A lower precision costs accuracy: it has to be that much faster.
constexpr double kClearly = 1.1;
/// Another order in memory costs nothing but the last digits, which it changes.
constexpr double kFaster = 1.05;

/// Seconds of the fastest of some steps; infinite where not even few samples fit into memory.
double step_seconds(const Computing& on, const job::JobConfig& job, const task::Task& task) {
  const auto samples = std::min({kSamples, job.train.global_batch, task.training()->size()});
  double least = std::numeric_limits<double>::infinity();
  device::without_memory_for(on.device, [&] {
    Rehearsal rehearsal(job.train, task, on);
    rehearsal.step(samples);  // kernels are chosen, memory is fetched
    const Stopwatch watch;
    for (int i = 0; i < kMostSteps && (i < 2 || watch.seconds() < kSeconds); ++i) {
      least = std::min(least, rehearsal.step(samples));
    }
  });
  return least;
}

Precision fastest(const job::JobConfig& job, const device::Place& place, const task::Task& task) {
  if (place.dtype != torch::kFloat32) return Precision::float32;
  const bool channels_last = job.train.memory_format == "channels_last";
  const auto seconds_in = [&](Precision precision) {
    return step_seconds({place.device, place.dtype, precision, 1.0, channels_last}, job, task);
  };
  double least = seconds_in(Precision::float32);
  const auto pays = [&](Precision precision) {
    if (!knows(precision, place.device)) return false;
    const double seconds = seconds_in(precision);
    if (kClearly * seconds >= least) return false;
    least = seconds;
    return true;
  };
  const auto wide = pays(Precision::tf32) ? Precision::tf32 : Precision::float32;
  if (pays(Precision::bfloat16)) return Precision::bfloat16;
  const bool scales = job.parallel.mode == "all_reduce" && job.compression.gradients == "none" &&
                      job.zero.update != "backward";
  if (!place.device.is_cpu() && scales && pays(Precision::float16)) return Precision::float16;
  return wide;
}

std::vector<Precision> gather(comm::Group group, Precision mine,
                              std::chrono::milliseconds timeout) {
  const std::array<std::uint8_t, 1> own = {static_cast<std::uint8_t>(mine)};
  std::vector<std::uint8_t> all(static_cast<std::size_t>(group.size()));
  group
      .all_gather(comm::buffer(std::span(own)), comm::buffer(std::span(all)),
                  Deadline::after(timeout))
      .wait();
  std::vector<Precision> precisions;
  for (const auto number : all) precisions.push_back(static_cast<Precision>(number));
  return precisions;
}

}  // namespace

bool knows(Precision precision, const torch::Device& device) {
  try {
    precision::require_precision(precision, device);
    return true;
  } catch (const Error&) {
    return false;
  }
}

Precision choose_precision(const job::JobConfig& job, const job::WorkerSpec& worker,
                           const device::Place& place, const task::Task& task) {
  const auto& name = job::precision_of(job, worker);
  if (name == "auto") return fastest(job, place, task);
  const auto precision = precision::precision_named(name);
  precision::require_precision(precision, place.device);
  return precision;
}

bool choose_channels_last(const job::JobConfig& job, const device::Place& place,
                          const task::Task& task, Precision precision,
                          progress::Observer& observer) {
  const auto& format = job.train.memory_format;
  if (format != "auto") return format == "channels_last";
  const auto few = task::batch_of(*task.training(), 0, 1);
  const auto inputs = task.inputs(few);
  const bool images = std::ranges::any_of(
      inputs, [](const auto& input) { return input.dim() == 4 && input.is_floating_point(); });
  if (!images) return false;
  Computing on{place.device, place.dtype, precision};
  const double contiguous = step_seconds(on, job, task);
  on.channels_last = true;
  const double last = step_seconds(on, job, task);
  if (kFaster * last >= contiguous) return false;
  observer.on_notice(fmt::format(
      "train.memory_format: steps with channels last are {:.2f} times as fast here, and are used",
      contiguous / last));
  return true;
}

bool all_in_one_precision(comm::Group group, std::optional<Precision> mine, Deadline deadline) {
  const auto number = mine ? static_cast<std::int64_t>(*mine) : -1;
  std::array<std::int64_t, 2> ends = {number, -number};
  group.all_reduce(comm::buffer(std::span(ends)), comm::ReduceOp::max, deadline).wait();
  return number >= 0 && ends[0] == -ends[1];
}

RankPrecisions::RankPrecisions(comm::Group group, const job::JobConfig& job,
                               const job::WorkerSpec& worker, const device::Place& place,
                               const task::Task& task, progress::Observer& observer,
                               std::optional<Precision> known)
    : scaler_(precision::scaler_options(job.train)) {
  if (!known && job::precision_of(job, worker) == "auto") {
    observer.on_phase("measuring precisions");
  }
  mine_ = known ? *known : choose_precision(job, worker, place, task);
  all_ = gather(std::move(group), mine_, milliseconds_of(job.parallel.timeout_s));
}

std::optional<torch::Dtype> RankPrecisions::half_of_all() const {
  const bool alike = std::ranges::all_of(all_, [this](Precision other) { return other == mine_; });
  if (!alike || !precision::is_half(mine_)) return std::nullopt;
  return precision::dtype_of(mine_);
}

std::optional<precision::LossScalerOptions> RankPrecisions::scaler() const {
  if (std::ranges::count(all_, Precision::float16) == 0) return std::nullopt;
  return scaler_;
}

void RankPrecisions::report(progress::Report& report,
                            const std::optional<precision::LossScaler>& scaler) const {
  // Fewer where several ranks are one worker, more where some have left.
  const auto workers = std::min(report.workers.size(), all_.size());
  for (std::size_t rank = 0; rank < workers; ++rank) {
    report.workers[rank].precision = precision::name_of(all_[rank]);
  }
  if (!scaler) return;
  report.loss_scale = {.scale = scaler->scale(), .skipped_steps = scaler->state().skipped};
}

}  // namespace bimetal::train
