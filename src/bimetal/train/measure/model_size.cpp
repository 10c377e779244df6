#include "bimetal/train/measure/model_size.h"

#include <torch/torch.h>

#include "bimetal/parallel/shard/flat_parameters.h"

namespace bimetal::train {

ModelSize size_of_model(const task::Task& task) {
  const auto by_units = task.make_model_by_units([](const task::Unit& unit) {
    for (const auto& [name, tensor] : unit.parameters) parallel::shard::hollow_out(tensor);
  });
  const auto model = by_units ? *by_units : task.make_model();
  ModelSize size{.by_units = by_units.has_value()};
  for (const auto& parameter : model.parameters()) {
    size.elements += static_cast<double>(parameter.numel());
  }
  return size;
}

}  // namespace bimetal::train
