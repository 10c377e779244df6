#pragma once
// A model of a program's own units, for its own training loop. Each rank keeps a part: one stage of
// a pipeline, its part of the tensors, shards of these, or all of that.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/api/job.h"
#include "bimetal/api/options.h"
#include "bimetal/api/task.h"

namespace bimetal {

/// One model on this rank. Use from one thread. Ranks go stage by stage, in a stage replica by
/// replica, and the ranks that have a replica's tensors in parts are neighbours. With more ranks
/// than one pipeline needs, each stage has replicas, which compute a part of each global batch.
class Pipeline {
 public:
  /// Cuts `model` (the same on every rank, with rank 0's values) into stages, and their tensors
  /// into parts and shards as the options have it, and moves this rank's to the job's device. The
  /// memory of the rest is freed: only step() and evaluate() may use `model` from then on. Before
  /// Job::balanced, whose batches are those of this rank's replica from then on. Collective.
  /// Errors: CallMismatch where ranks have other options; InvalidArgument for stages and parts that
  /// the ranks, units or tensors do not come to, and options that make no sense; Unsupported for
  /// task::GroupedBatchNorm, for parts of a model without Unit::splits, and for options that do not
  /// go together; task::require_exact's; those of the store's constructor, as DataParallel has
  /// them.
  Pipeline(task::Model model, const Job& job, PipelineOptions options = {});
  ~Pipeline();

  /// For an optimizer: this rank's parameters of the model, or its pieces of them (zero.level 1 to
  /// 3).
  std::vector<torch::Tensor> parameters() const;

  /// The mean loss of the last stage's outputs over a piece's samples, by their weight.
  using MeanLoss = std::function<torch::Tensor(const task::Values& outputs, const Batch& piece)>;

  /// The step of the batch that Job::balanced handed out last, in micro-batches through the stages;
  /// then `optimizer`, on every rank. The first stage takes all tensors of a batch but the last.
  /// `mean_loss` is called on the last stage alone, and there on all ranks that have a replica's
  /// tensors in parts, with the same outputs. All ranks hold the gradient of the mean over the
  /// global batch. Collective. Errors: as DataParallel::step(optimizer, mean_loss) has them;
  /// OutOfMemory, on every rank, where a stage has no room for the smallest micro-batch.
  void step(torch::optim::Optimizer& optimizer, const MeanLoss& mean_loss);

  /// As DataParallel::evaluate has it, from the last stage's outputs.
  progress::Evaluation evaluate(
      std::shared_ptr<const task::Dataset> data,
      const std::function<task::Values(const task::Values& outputs, const Batch& batch)>& sums,
      std::vector<std::string> metrics = {});

  /// As DataParallel has them; either goes on with the other's checkpoints.
  std::filesystem::path save(const std::filesystem::path& dir, torch::optim::Optimizer& optimizer,
                             std::int64_t keep = 2);
  /// As DataParallel::resume. Collective.
  std::optional<StartingPoint> resume(const std::filesystem::path& dir,
                                      torch::optim::Optimizer& optimizer);
  void save_model(const std::filesystem::path& path);  ///< the whole model, by rank 0, as
                                                       ///< DataParallel::save_model. Collective

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bimetal
