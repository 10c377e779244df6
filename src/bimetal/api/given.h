#pragma once
// What a program gives to DataParallel and Pipeline: functions, as the tasks that the inner rooms
// know; a model's tensors, of which something is asked before each step; and its ranks' parts of a
// model, as checkpoints. Private to api.

#include <torch/csrc/api/include/torch/nn/module.h>
#include <torch/csrc/api/include/torch/optim/optimizer.h>
#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "bimetal/api/balanced_steps.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/comm/group.h"
#include "bimetal/task/task.h"
#include "bimetal/task/unit.h"
#include "bimetal/train/piece_states.h"

namespace bimetal::api {

/// Sums over a batch: the losses first, and then metrics of these names.
class GivenSums final : public task::Task {
 public:
  using Sums = std::function<task::Values(const task::Values& outputs, const Batch& batch)>;

  GivenSums(Sums sums, std::vector<std::string> metrics)
      : sums_(std::move(sums)), names_(std::move(metrics)) {}

  task::Model make_model() const override { return {}; }
  std::shared_ptr<const task::Dataset> training() const override { return nullptr; }
  task::Values inputs(const task::Values& batch) const override { return batch; }
  /// Error(InvalidArgument) where the function gives more or fewer than there are names.
  torch::Tensor loss_sum(const task::Values& outputs, const task::Values& batch) const override;
  std::vector<task::Metric> metrics() const override;

 private:
  Sums sums_;
  std::vector<std::string> names_;
  mutable task::Values last_;  ///< what loss_sum() has got; the metrics' sums are asked for next
};

/// A loss that is the mean over a piece of the batch under way. Use from one thread.
class GivenLoss final : public task::Task {
 public:
  using Mean = std::function<torch::Tensor(const task::Values& outputs, const Batch& piece)>;

  /// `inputs_only`: the model gets all of a batch but the last, as of other tasks; else all.
  explicit GivenLoss(bool inputs_only, task::Model model = {})
      : inputs_only_(inputs_only), model_(std::move(model)) {}

  /// Begins the batch under way in `steps`. Both arguments must outlive the step.
  void begin(const BalancedSteps& steps, const Mean& mean) {
    steps_ = &steps;
    mean_ = &mean;
  }

  /// Until it is given nullptr: these sums in place of the loss.
  void judge_by(const GivenSums* sums) { sums_ = sums; }

  task::Model make_model() const override { return model_; }
  std::shared_ptr<const task::Dataset> training() const override { return nullptr; }
  task::Values inputs(const task::Values& batch) const override {
    return inputs_only_ ? Task::inputs(batch) : batch;
  }
  /// In the scope of the piece's draws. Error(InvalidArgument) for a mean that is not one number.
  torch::Tensor loss_sum(const task::Values& outputs, const task::Values& batch) const override;
  std::vector<task::Metric> metrics() const override;

 private:
  bool inputs_only_;
  task::Model model_;
  const GivenSums* sums_ = nullptr;
  const BalancedSteps* steps_ = nullptr;
  const Mean* mean_ = nullptr;
};

/// Calls `end` when it goes, however that comes.
template <typename End>
class AtEnd {
 public:
  explicit AtEnd(End end) : end_(std::move(end)) {}
  ~AtEnd() { end_(); }
  AtEnd(const AtEnd&) = delete;
  AtEnd& operator=(const AtEnd&) = delete;

 private:
  End end_;
};

/// A model that hands on its inputs, for code that calls the program's own model; samples of
/// `model` that are normalised with each other stay together.
task::Model hand_on(const task::Model& model);

/// Modules in evaluation mode; each gets its own mode back.
class EvaluationMode {
 public:
  explicit EvaluationMode(const task::Model& model);
  ~EvaluationMode();
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
};

/// Error(InvalidArgument) for a parameter without values: a Pipeline, or shards, have let go of it.
void require_values(const task::ModelState& model);

/// The tensors of one model. Use from one thread.
class OwnTensors {
 public:
  /// `whose`: the class's name, for messages; `optimized`: the tensors that an optimizer is to be
  /// made of. Error(InvalidArgument) for two tensors of one name.
  OwnTensors(const char* whose, const task::ModelState& model,
             const std::vector<torch::Tensor>& optimized);

  /// Before each step. Error(InvalidArgument) for tensors that have been frozen since, or are
  /// trained only now; for gradients that are not those of the last step, which would drop them;
  /// and as below.
  void require_usable(const torch::optim::Optimizer& optimizer) const;

  /// Error(InvalidArgument) for an optimizer with other tensors, or with none that is trained.
  void require_all_of(const torch::optim::Optimizer& optimizer) const;

  /// At a step's end, however it comes: its gradients are known to the next require_usable().
  class AfterStep {
   public:
    explicit AfterStep(OwnTensors& tensors) : tensors_(tensors) {}
    ~AfterStep() { tensors_.note_gradients(); }
    AfterStep(const AfterStep&) = delete;
    AfterStep& operator=(const AfterStep&) = delete;

   private:
    OwnTensors& tensors_;
  };

 private:
  void require_as_they_were() const;
  void require_untouched() const;
  void note_gradients();

  /// A gradient whose memory may be freed.
  struct Left {
    Left(const c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>& g, std::int64_t v)
        : gradient(g), version(v) {}
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> gradient;
    std::int64_t version;
  };

  const char* whose_;
  std::vector<task::NamedTensor> trained_, frozen_;
  std::unordered_set<const c10::TensorImpl*> known_;
  std::vector<std::optional<Left>> left_;  ///< by the last step; as trained_
};

/// The part of a model that a rank keeps.
struct KeptOfModel {
  task::ModelState model = {};                  ///< the whole one: names and sizes alone of
                                                ///< others' parts
  std::vector<task::NamedTensor> trained = {};  ///< of it
  train::KeptPieces pieces = {};
  task::ModelState uncut = {};  ///< tensors that are here and in no pieces
  /// Whether this rank gives a piece that several ranks have, and the uncut tensors.
  std::function<bool(const train::KeptPiece& piece)> gives;
  bool gives_uncut = true;
  std::function<void()> looked_at = [] {};  ///< after each piece
};

/// Each rank writes the pieces that it gives into rank 0's folder. Collective. Errors:
/// save_slices'.
std::filesystem::path save_kept(const comm::Group& group, const job::CheckpointConfig& config,
                                const KeptOfModel& kept, const torch::optim::Optimizer& optimizer,
                                checkpoint::TrainingState state, std::chrono::milliseconds timeout);

/// Each rank reads its part of the checkpoint that rank 0's `from` names. Collective. Errors: those
/// of checkpoint::load_checkpoint.
checkpoint::TrainingState take_kept(const comm::Group& group, const std::filesystem::path& from,
                                    const KeptOfModel& kept, torch::optim::Optimizer& optimizer);

/// Folder `dir` of rank 0, if it holds a checkpoint there. Collective.
std::optional<std::filesystem::path> checkpoints_in(const comm::Group& group,
                                                    const std::filesystem::path& dir);

/// The next TrainingState::term of a job that saves into `dir`. The same on all ranks; collective.
std::uint64_t next_term(const comm::Group& group, const std::filesystem::path& dir);

/// A safetensors file, which rank 0 writes. Collective; its errors on every rank.
void save_on_rank_0(const comm::Group& group, const task::ModelState& model,
                    const std::filesystem::path& path);

}  // namespace bimetal::api
