#include "bimetal/checkpoint/model_description.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/device/place.h"
#include "bimetal/models/language/language_model.h"
#include "bimetal/models/registry.h"

namespace bimetal::checkpoint {

task::Model draw_described_model(const ModelDescription& description, const task::UnitMade& made) {
  if (description.language) return models::make_language_model(*description.language, made);
  if (description.in_python()) {
    throw Error(
        ErrorCode::Unsupported,
        fmt::format("the checkpoint's model is written in Python ({0}), and what it takes is "
                    "not known here: load its model.safetensors into it there "
                    "(docs/tasks.md), or evaluate it with its job file",
                    description.name));
  }
  auto model = models::make_model(description.name,
                                  {.channels = description.channels,
                                   .height = description.height,
                                   .width = description.width,
                                   .classes = description.classes},
                                  description.hidden, description.norm_group)
                   ->units();
  for (const auto& unit : model.units) made(unit);
  return model;
}

std::optional<std::string> other_normalisation(const std::optional<ModelDescription>& before,
                                               const ModelDescription& now) {
  if (!before || now.language || now.in_python()) return std::nullopt;
  if (before->mean == now.mean && before->stddev == now.stddev) return std::nullopt;
  return fmt::format(
      "the checkpoint's model was trained on images normalised by data.mean = [{}] and data.stddev "
      "= "
      "[{}], and goes on with [{}] and [{}]: set these keys to keep to the former",
      fmt::join(before->mean, ", "), fmt::join(before->stddev, ", "), fmt::join(now.mean, ", "),
      fmt::join(now.stddev, ", "));
}

task::Model make_described_model(const ModelDescription& description) {
  const auto before = random_state();
  auto model = draw_described_model(description);
  set_random_state(before);
  model.to(torch::kCPU, device::dtype_named(description.dtype));
  model.eval();
  return model;
}

}  // namespace bimetal::checkpoint
