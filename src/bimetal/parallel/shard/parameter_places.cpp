#include "bimetal/parallel/shard/parameter_places.h"

#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>

namespace bimetal::parallel::shard {

Places places_of(const std::vector<task::NamedTensor>& trained) {
  Places places;
  for (std::size_t i = 0; i < trained.size(); ++i) {
    places.emplace(trained[i].tensor.unsafeGetTensorImpl(), i);
  }
  return places;
}

std::vector<ParameterPlace> describe(const task::Model& model,
                                     const std::vector<task::NamedTensor>& trained,
                                     const WholeForm& form) {
  const auto places = places_of(trained);
  std::vector<ParameterPlace> described(trained.size());
  std::vector<bool> seen(trained.size()), multiplied(trained.size(), true);
  for (std::size_t unit = 0; unit < model.units.size(); ++unit) {
    for (const auto& [name, tensor] : model.units[unit].parameters) {
      const auto found = places.find(tensor.unsafeGetTensorImpl());
      if (found == places.end()) continue;
      auto& place = described[found->second];
      const auto& products = model.units[unit].products;
      if (std::ranges::find(products, name) == products.end()) multiplied[found->second] = false;
      if (seen[found->second]) {
        place.shared = place.shared || place.unit != unit;
      } else {
        place = {tensor.scalar_type(), tensor.numel(), unit, false};
        seen[found->second] = true;
      }
    }
  }
  for (std::size_t i = 0; i < described.size(); ++i) {
    auto& place = described[i];
    if (place.shared) continue;
    place.resident = place.count < form.keep_below;
    const bool halved = multiplied[i] && !place.resident && place.dtype == torch::kFloat32;
    if (halved) place.gathered = form.half;
  }
  return described;
}

}  // namespace bimetal::parallel::shard
