#include "bimetal/predict/prediction_model.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <cstring>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/base/release.h"
#include "bimetal/base/stopwatch.h"
#include "bimetal/data/images/dataset.h"
#include "bimetal/device/device.h"

namespace bimetal::predict {

PredictionModel::PredictionModel(const checkpoint::ModelDescription& description,
                                 const device::Place& place, double speed, WeightsSource& weights)
    : description_(description), place_(place), speed_(speed), weights_(weights) {
  if (description_.language) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("'{}' is a language model, and predictions are served of images alone: "
                            "evaluate it, or go on with its text by bimetal generate",
                            description_.name));
  }
}

serving::ModelFacts PredictionModel::facts() const {
  serving::ModelFacts facts;
  facts.release = std::string(release());
  facts.model = description_.name;
  facts.channels = description_.channels;
  facts.height = description_.height;
  facts.width = description_.width;
  facts.classes = description_.classes;
  facts.mean = description_.mean;
  facts.stddev = description_.stddev;
  facts.dtype = description_.dtype == "float64" ? comm::DType::float64 : comm::DType::float32;
  return facts;
}

/// A part of a batch as the model takes it, on the CPU.
torch::Tensor PredictionModel::inputs_of(const serving::Samples& samples) const {
  const std::vector<std::int64_t> shape = {samples.count, description_.channels,
                                           description_.height, description_.width};
  auto* bytes = const_cast<std::byte*>(samples.values.data());  // from_blob only looks at them
  if (samples.dtype == comm::DType::uint8) {
    return data::normalised(torch::from_blob(bytes, shape, torch::kUInt8), description_.mean,
                            description_.stddev, place_.dtype);
  }
  const bool wide = samples.dtype == comm::DType::float64;
  return torch::from_blob(bytes, shape, wide ? torch::kFloat64 : torch::kFloat32).to(place_.dtype);
}

serving::WeightsVersion PredictionModel::answer(std::span<const serving::Samples> parts,
                                                std::span<double> logits) {
  const torch::NoGradGuard no_grad;
  const auto weights = weights_.newest();  // from a disk, or from other processes
  const Stopwatch watch;
  std::vector<torch::Tensor> inputs;
  for (const auto& part : parts) inputs.push_back(inputs_of(part));
  const auto x = (inputs.size() == 1 ? inputs.front() : torch::cat(inputs)).to(place_.device);
  const auto outputs = task::run_units(weights.model, {x});
  const auto out = outputs.front().to(torch::kCPU, torch::kFloat64).contiguous();
  if (static_cast<std::size_t>(out.numel()) != logits.size()) {
    throw Error(ErrorCode::Internal, "the model gives another number of classes than it says");
  }
  std::memcpy(logits.data(), out.const_data_ptr(), logits.size_bytes());
  device::pause_for_speed(speed_, watch.seconds());
  return weights.version;
}

}  // namespace bimetal::predict
