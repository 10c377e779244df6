#pragma once
// Accuracy and loss on a test set, computed by all ranks together.

#include <torch/csrc/api/include/torch/types.h>

#include <chrono>
#include <span>

#include "bimetal/comm/group.h"
#include "bimetal/data/dataset.h"
#include "bimetal/models/registry.h"

namespace bimetal::train {

struct Evaluation {
  double accuracy = 0;  ///< 0…1
  double loss = 0;      ///< mean cross-entropy
};

struct EvaluateOptions {
  torch::Device device{torch::kCPU};
  torch::Dtype dtype = torch::kFloat32;
  double speed = 1.0;  ///< emulated: see device::pause_for_speed
  std::chrono::milliseconds timeout{std::chrono::minutes(5)};
};

/// The test set is visited in chunks of that many samples, the last one shorter.
std::int64_t test_chunks(const data::ImageDataset& test);

struct ChunkSums {
  double correct = 0;
  double loss = 0;
  std::int64_t samples = 0;
};

/// Chunks `first` … `first + count - 1`, by this process alone. Leaves the model in training mode.
ChunkSums evaluate_chunks(models::Classifier& model, const data::ImageDataset& test,
                          std::int64_t first, std::int64_t count, const EvaluateOptions& options);

/// Visits each sample exactly once; rank r takes a part in proportion to speeds[r] (samples/s; all
/// 0: equal parts). The test set is cut into the same chunks whatever the ranks are, and the chunks
/// are dealt out, so that on like devices the result is the same to the last bit for any split.
/// Leaves the model in training mode. Collective. Thread-compatible.
Evaluation evaluate(models::Classifier& model, const data::ImageDataset& test, comm::Group group,
                    std::span<const double> speeds, const EvaluateOptions& options);

}  // namespace bimetal::train
