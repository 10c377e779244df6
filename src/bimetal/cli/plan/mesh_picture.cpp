#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bimetal/cli/plan/plan_output.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/plan/memory/memory_use.h"
#include "bimetal/plan/mesh/mesh_search.h"
#include "bimetal/plan/mesh/pipeline_costs.h"
#include "bimetal/plan/plan.h"

namespace bimetal::cli {
namespace {

using plan::MeshChoice;

constexpr int kLookedOver = 16;  // devices

/// One number where all are that.
void take_counts(const std::vector<std::size_t>& counts, int& alike, std::vector<int>& each) {
  alike = static_cast<int>(std::ranges::max(counts));
  if (plan::all_alike(counts)) return;
  each.assign(counts.begin(), counts.end());
}

parallel::MeshShape shape_of_choice(const MeshChoice& choice) {
  parallel::MeshShape shape{.stages = static_cast<int>(choice.stages.size())};
  take_counts(choice.replicas(), shape.replicas, shape.uneven);
  take_counts(choice.parts(), shape.tensor, shape.parts);
  return shape;
}

std::vector<std::string> names_of(const plan::ModelFacts& facts) {
  std::vector<std::string> names;
  for (const auto& unit : facts.units) names.push_back(unit.name);
  return names;
}

/// One text for each device, or one for all if they are the same.
std::string each(const std::vector<std::string>& texts) {
  for (const auto& text : texts) {
    if (text != texts.front()) return fmt::format("{}", fmt::join(texts, " : "));
  }
  return texts.front();
}

std::string stage_text(const plan::MeshProblem& on, const MeshChoice& choice, std::size_t number) {
  const auto& stage = choice.stages[number];
  std::vector<std::string> elements, operations, names;
  bool known = true;
  for (std::size_t d = 0; d < stage.devices.size(); ++d) {
    const auto work = work_of(on, choice, number, d);
    elements.push_back(fmt::format("{:.0f}", work.elements));
    operations.push_back(plan::operations_text(work.operations));
    names.push_back(on.cluster.device(stage.devices[d]).name);
    known = known && work.counted;
  }
  return fmt::format("{}, {} parameters{}, on {}",
                     parallel::units_text(names_of(on.input.facts.front()), stage.pieces),
                     each(elements), known ? fmt::format(", {} a step", each(operations)) : "",
                     fmt::join(names, ", "));
}

}  // namespace

DeviceWork work_of(const plan::MeshProblem& on, const MeshChoice& choice, std::size_t stage,
                   std::size_t device) {
  const auto& own = choice.stages[stage];
  const auto samples = static_cast<double>(own.samples[device / own.parts()]);
  const auto& whole = on.facts_of(own.devices[device]);
  const auto part = own.parts() == 1
                        ? whole
                        : plan::facts_in_parts(whole, own.part_weights, device % own.parts());
  // The last stage also has the tensors that it shares with earlier ones.
  DeviceWork work{.elements = plan::tied_elements(part, own.pieces)};
  for (const auto& [begin, end] : own.pieces) {
    for (auto u = begin; u < end; ++u) {
      work.elements += static_cast<double>(part.units[u].elements());
      work.operations += plan::kForwardsOfStep * samples * part.units[u].operations;
      work.counted = work.counted || part.units[u].operations > 0;
    }
  }
  return work;
}

std::string picture_of(const plan::MeshProblem& on, const MeshChoice& choice) {
  const bool cut = choice.stages.size() > 1 || choice.most_parts() > 1;
  if (!cut || choice.devices() > kLookedOver) return "";
  std::vector<std::string> stages;
  for (std::size_t s = 0; s < choice.stages.size(); ++s) {
    stages.push_back(stage_text(on, choice, s));
  }
  return parallel::picture(shape_of_choice(choice), stages);
}

}  // namespace bimetal::cli
