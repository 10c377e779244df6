#pragma once
// What a trained model says about each sample of a set, and what several of them say together.

#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/predict/evaluate.h"

namespace bimetal::predict {

/// Of a task that tells samples' classes, its model's first output being logits [b, classes]: the
/// probabilities of the classes, their softmax: float64 [N, classes] on the CPU, in the order of
/// the evaluation data. Taken in double precision whatever the model computes in, so that
/// their order is the logits'. Leaves the model in evaluation mode. Thread-compatible.
torch::Tensor predict(const task::Task& task, const task::Model& model,
                      const EvaluateOptions& options);

/// The targets of such a task's evaluation data: int64 [N].
torch::Tensor labels_of(const task::Task& task);

/// Accuracy, and mean cross-entropy, of `probabilities` [N, classes] against `labels` int64 [N].
/// With predict()'s the accuracy is the one that evaluate() gives the same model.
progress::Evaluation score(const torch::Tensor& probabilities, const torch::Tensor& labels);

}  // namespace bimetal::predict
