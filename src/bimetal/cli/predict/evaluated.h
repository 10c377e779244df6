#pragma once
// What `bimetal evaluate` says of trained models.

#include <torch/csrc/api/include/torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bimetal/progress/metrics.h"

namespace bimetal::cli {

struct EvaluatedModel {
  std::string checkpoint;
  progress::Evaluation evaluation;
};

/// What all of the models say, one after the other: only their sum is kept.
struct Evaluated {
  std::vector<EvaluatedModel> models;
  progress::Evaluation ensemble;  ///< of the mean; with one model that model's
  std::int64_t samples = 0;
  torch::Tensor probabilities;  ///< of classifiers: the mean, float64 [N, classes]
  torch::Tensor labels;         ///< likewise, int64 [N]
};

void print_table(const Evaluated& all);

/// For --report: JSON.
std::string report_text(const Evaluated& all);

}  // namespace bimetal::cli
