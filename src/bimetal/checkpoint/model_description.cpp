#include "bimetal/checkpoint/model_description.h"

#include "bimetal/checkpoint/starting_point.h"
#include "bimetal/device/place.h"
#include "bimetal/models/language/language_model.h"
#include "bimetal/models/registry.h"

namespace bimetal::checkpoint {

task::Model draw_described_model(const ModelDescription& description) {
  if (description.language) return models::make_language_model(*description.language);
  return models::make_model(description.name,
                            {.channels = description.channels,
                             .height = description.height,
                             .width = description.width,
                             .classes = description.classes},
                            description.hidden)
      ->units();
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
