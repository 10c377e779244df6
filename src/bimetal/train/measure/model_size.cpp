#include "bimetal/train/measure/model_size.h"

#include <torch/csrc/api/include/torch/types.h>

#include "bimetal/parallel/shard/flat_parameters.h"
#include "bimetal/train/setup.h"

namespace bimetal::train {

ModelSize size_of_model(const task::Task& task) {
  ModelSize size;
  for (const auto& parameter : make_model_of_sizes(task).parameters()) {
    size.by_units = size.by_units || parallel::shard::is_hollow(parameter);
    size.elements += static_cast<double>(parameter.numel());
  }
  return size;
}

}  // namespace bimetal::train
