#pragma once
// Where a run begins: at the first sample, or where a checkpoint left off.
//
// Sends the state of a run from memory to memory, to ranks that come later or have missed a step.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/checkpoint/slices/shared_reader.h"
#include "bimetal/comm/group.h"
#include "bimetal/job/job_config.h"
#include "bimetal/progress/observer.h"
#include "bimetal/task/task.h"

namespace bimetal::checkpoint {

/// Loads rank 0's checkpoint into the optimizer and the random numbers of every rank and into the
/// parameters of rank 0; without one, the state of a fresh start. Another global batch than the
/// checkpoint's is allowed and noted. Collective. Errors: InvalidArgument for another seed, since
/// the order of samples would change within the epoch; those of load_shared_checkpoint.
TrainingState starting_point(comm::Group group, const job::JobConfig& job,
                             const std::optional<std::filesystem::path>& resume,
                             const task::ModelState& model, torch::optim::Optimizer& optimizer,
                             progress::Observer& observer);

/// The same where tensors are read in slices: `saved` has none of them read.
TrainingState starting_point(comm::Group group, const job::JobConfig& job,
                             const SharedReader& saved, progress::Observer& observer);

/// Optimizer steps that the job will have done at its end, those before `start` included.
std::int64_t planned_steps(const job::TrainConfig& config, std::int64_t dataset_size,
                           const TrainingState& start);

/// A note for the user if train.epochs end before train.steps do; `planned` is from
/// planned_steps().
std::optional<std::string> early_end(const job::TrainConfig& config, std::int64_t planned);

/// The state of torch's default CPU generator, as checkpoints carry it.
std::vector<std::uint8_t> random_state();
void set_random_state(const std::vector<std::uint8_t>& state);

/// Gives the ranks that are `behind` the state of the others. Those send parameters and the
/// optimizer's tensors in slices, each of them its part. The first of them also sends the buffers
/// and the state that is returned. `own` and the optimizer's state are ignored on ranks that are
/// behind. Tensors of the CPU are received where they lie. Ranks that are not behind must have made
/// the same steps, and at least one rank must be none of those. Collective; all return once the
/// last has everything. `timeout`: for each slice. Error(CorruptData) on a rank that is sent
/// nonsense; then, and after a loss, the values of those behind are undefined.
TrainingState catch_up(comm::Group group, const std::vector<bool>& behind, const TrainingState& own,
                       const task::ModelState& model, torch::optim::Optimizer& optimizer,
                       std::chrono::milliseconds timeout);

}  // namespace bimetal::checkpoint
