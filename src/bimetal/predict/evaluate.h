#pragma once
// Loss and metrics on the data that a task judges its model by, computed by all ranks together.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/progress/metrics.h"
#include "bimetal/task/task.h"

namespace bimetal::predict {

struct EvaluateOptions {
  torch::Device device{torch::kCPU};
  double speed = 1.0;  ///< emulated: see device::pause_for_speed
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
  /// Seconds that passes over the model have waited for other ranks so far: no reason for a pause.
  /// May be left out.
  std::function<double()> waited = {};
  /// Data to judge by; nullptr: the task's evaluation().
  std::shared_ptr<const task::Dataset> data = {};
  /// evaluate() alone: once this rank's part is computed, before the ranks meet.
  std::function<void()> computed = {};
};

/// The data set is visited in that many chunks of equally many samples, the last one shorter. The
/// samples' weights decide the number in a chunk.
std::int64_t test_chunks(const task::Dataset& test);

/// The sums of an evaluation: the loss, and each of the task's metrics, over samples of that
/// weight.
struct EvaluationSums {
  double loss = 0;
  std::vector<double> metrics = {};  ///< in the order of Task::metrics()
  std::int64_t weight = 0;
};

/// Evaluates chunks `first` … `first + count - 1` of the task's evaluation data, by this process
/// alone. Leaves the model in training mode.
EvaluationSums evaluate_chunks(const task::Task& task, const task::Model& model, std::int64_t first,
                               std::int64_t count, const EvaluateOptions& options);

/// The evaluation that follows from the sums over the whole data set.
progress::Evaluation evaluation_of(const task::Task& task, const EvaluationSums& sums);

/// How the outputs for chunks come about where a rank alone has not the whole model: sets of ranks
/// compute parts of them.
struct Through {
  using Inputs = std::function<task::Values(std::int64_t chunk)>;
  using Take = std::function<void(std::int64_t chunk, const task::Values& outputs)>;
  int part = 0;        ///< this rank's set's
  bool counts = true;  ///< of several ranks of a set that get the same outputs, one does
  /// Calls `take` with the outputs for each chunk from `first` to `last - 1` on one of the set's
  /// ranks, or on several ranks that compute the rest together. Gradients are off.
  std::function<void(std::int64_t first, std::int64_t last, const Inputs& inputs, const Take& take)>
      run;
};

/// As below, by way of `through`; `speeds`: one for each set.
progress::Evaluation evaluate(const task::Task& task, const Through& through, comm::Group group,
                              std::span<const double> speeds, const EvaluateOptions& options);

/// Visits each sample exactly once; rank r takes a part in proportion to speeds[r] (samples/s; all
/// 0: equal parts). The data is cut into the same chunks for any ranks, and the chunks are dealt
/// out. So on like devices the result is the same to the last bit for any split. Leaves the model
/// in training mode. Collective. Thread-compatible. Error(InvalidArgument) for a task without
/// evaluation data.
progress::Evaluation evaluate(const task::Task& task, const task::Model& model, comm::Group group,
                              std::span<const double> speeds, const EvaluateOptions& options);

}  // namespace bimetal::predict
