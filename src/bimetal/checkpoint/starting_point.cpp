#include "bimetal/checkpoint/starting_point.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/optim.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/comm/exchange.h"

namespace bimetal::checkpoint {
namespace {

TrainingState fresh_start(const comm::Group& group, const job::JobConfig& job) {
  TrainingState start;
  start.seed = job.train.seed;
  start.global_batch = job.train.global_batch;
  const auto follow_the_last = [&] { start.term = last_save(job.checkpoint.dir).term + 1; };
  comm::on_rank_0(group, follow_the_last, Deadline::after(kFileTimeout));
  return start;
}

/// Where `saved` left off.
TrainingState go_on(TrainingState start, const TrainingState& saved, progress::Observer& observer) {
  if (saved.seed != start.seed) {
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("the checkpoint was made with train.seed = {} and this job has {}: the order "
                    "of samples would change within the epoch; resume with train.seed = {}",
                    saved.seed, start.seed, saved.seed));
  }
  if (saved.global_batch != start.global_batch) {
    observer.on_notice(fmt::format(
        "the checkpoint was made with train.global_batch = {}; this job goes on with {}",
        saved.global_batch, start.global_batch));
  }
  start.step = saved.step;
  start.position = saved.position;
  start.error_feedback = saved.error_feedback;
  start.loss_scaler = saved.loss_scaler;
  start.model = saved.model;
  set_random_state(saved.torch_rng);
  return start;
}

}  // namespace

TrainingState starting_point(comm::Group group, const job::JobConfig& job,
                             const std::optional<std::filesystem::path>& resume,
                             const task::ModelState& model, torch::optim::Optimizer& optimizer,
                             progress::Observer& observer) {
  auto start = fresh_start(group, job);
  const auto saved = load_shared_checkpoint(std::move(group), resume, model, optimizer);
  return saved ? go_on(std::move(start), *saved, observer) : start;
}

TrainingState starting_point(comm::Group group, const job::JobConfig& job,
                             const SharedReader& saved, progress::Observer& observer) {
  auto start = fresh_start(group, job);
  return saved.found() ? go_on(std::move(start), saved.state(), observer) : start;
}

std::int64_t planned_steps(const job::TrainConfig& config, std::int64_t dataset_size,
                           const TrainingState& start) {
  const auto steps_for = [&](std::int64_t samples) {
    return (samples + config.global_batch - 1) / config.global_batch;
  };
  const auto epochs_left = config.epochs - start.position.epoch;
  if (epochs_left <= 0) return start.step;
  const auto all = start.step + steps_for(dataset_size - start.position.offset) +
                   (epochs_left - 1) * steps_for(dataset_size);
  return config.steps > 0 ? std::max(start.step, std::min(all, config.steps)) : all;
}

std::optional<std::string> early_end(const job::TrainConfig& config, std::int64_t planned) {
  if (config.steps <= planned) return std::nullopt;
  return fmt::format(
      "train.steps = {}, but {} (train.epochs) {} over after {}, and so is the job; raise "
      "train.epochs to go on until then",
      config.steps, counted(config.epochs, "epoch"), config.epochs == 1 ? "is" : "are",
      counted(planned, "step"));
}

void set_random_state(const std::vector<std::uint8_t>& state) {
  auto generator = at::detail::getDefaultCPUGenerator();
  generator.set_state(torch::tensor(torch::ArrayRef<std::uint8_t>(state), torch::kUInt8));
}

std::vector<std::uint8_t> random_state() {
  const auto state = at::detail::getDefaultCPUGenerator().get_state();
  const auto* bytes = state.data_ptr<std::uint8_t>();
  return {bytes, bytes + state.numel()};
}

}  // namespace bimetal::checkpoint
