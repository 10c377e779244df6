#pragma once
// Which model a checkpoint holds and what it takes, so that it can be used without its job.

#include <cstdint>
#include <memory>
#include <string>

#include "bimetal/data/dataset.h"
#include "bimetal/models/registry.h"
#include "bimetal/train/job.h"

namespace bimetal::train {

struct ModelDescription {
  std::string name;         ///< as models::make_model takes it
  std::int64_t hidden = 0;  ///< likewise
  std::int64_t channels = 1, height = 28, width = 28, classes = 10;
  std::string dtype = "float32";  ///< that it was trained in: "float32" or "float64"
  double mean = 0, stddev = 1;    ///< pixels x become (x/255 − mean) ÷ stddev
  bool operator==(const ModelDescription&) const = default;
};

ModelDescription describe_model(const Job& job, const data::ImageDataset& dataset);

/// Such a model on the CPU in its own type, in evaluation mode. Its parameters are drawn, but
/// torch's default generator is left as it was. Errors of models::make_model.
std::shared_ptr<models::Classifier> make_described_model(const ModelDescription& description);

}  // namespace bimetal::train
