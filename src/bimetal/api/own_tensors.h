#pragma once
// What DataParallel and Pipeline ask of a model's tensors before each step. Private to api.

#include <torch/csrc/api/include/torch/optim/optimizer.h>
#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <optional>
#include <unordered_set>
#include <vector>

#include "bimetal/task/task.h"

namespace bimetal::api {

/// Error(InvalidArgument) for a parameter without values: a Pipeline, or shards, have let go of it.
void require_values(const task::ModelState& model);

/// Of one model. Use from one thread.
class OwnTensors {
 public:
  /// `whose`: the class's name, for messages; `optimized`: what an optimizer is to be made of.
  /// Error(InvalidArgument) for two tensors of one name.
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

  /// Of a gradient whose memory may go.
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

}  // namespace bimetal::api
