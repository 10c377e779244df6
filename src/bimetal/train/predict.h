#pragma once
// What a trained model says about each sample of a set, and what several of them say together.

#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/data/dataset.h"
#include "bimetal/models/registry.h"
#include "bimetal/train/evaluate.h"

namespace bimetal::train {

/// Probabilities of the classes, the softmax of the model's logits: float64 [N, classes] on the
/// CPU, in the order of the set. Taken in double precision whatever the model computes in, so that
/// their order is the logits'. Leaves the model in evaluation mode. Thread-compatible.
torch::Tensor predict(models::Classifier& model, const data::ImageDataset& set,
                      const EvaluateOptions& options);

/// Accuracy, and mean cross-entropy, of `probabilities` [N, classes] against `labels` int64 [N].
/// With predict()'s the accuracy is the one that evaluate() gives the same model.
Evaluation score(const torch::Tensor& probabilities, const torch::Tensor& labels);

}  // namespace bimetal::train
