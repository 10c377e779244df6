#include "bimetal/parallel/shard/parameter_places.h"

#include <torch/torch.h>

namespace bimetal::parallel::shard {

Places places_of(const std::vector<task::NamedTensor>& trained) {
  Places places;
  for (std::size_t i = 0; i < trained.size(); ++i) {
    places.emplace(trained[i].tensor.unsafeGetTensorImpl(), i);
  }
  return places;
}

std::vector<ParameterPlace> describe(const task::Model& model,
                                     const std::vector<task::NamedTensor>& trained) {
  const auto places = places_of(trained);
  std::vector<ParameterPlace> described(trained.size());
  std::vector<bool> seen(trained.size());
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    for (const auto& [name, tensor] : model.units[unit].parameters) {
      const auto found = places.find(tensor.unsafeGetTensorImpl());
      if (found == places.end()) continue;
      auto& place = described[found->second];
      if (seen[found->second]) {
        place.shared = place.shared || place.unit != unit;
      } else {
        place = {tensor.scalar_type(), tensor.numel(), unit, false};
        seen[found->second] = true;
      }
    }
  }
  return described;
}

}  // namespace bimetal::parallel::shard
