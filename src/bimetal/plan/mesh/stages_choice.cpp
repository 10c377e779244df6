#include "bimetal/plan/mesh/stages_choice.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "bimetal/plan/mesh/data_choice.h"
#include "bimetal/plan/mesh/pipeline_choice.h"

namespace bimetal::plan {
namespace {

namespace schedule = parallel::schedule;

/// As a run has them.
int micro_batches_of(const MeshInput& input, const StagesWish& wish, int stages, int replicas) {
  if (wish.micro_batches > 0) return wish.micro_batches;
  const auto share = std::max<std::int64_t>(1, input.global_batch / replicas);
  const auto limit = input.micro_batch > 0 ? input.micro_batch : share;
  return schedule::usual_micro_batches(wish.schedule, stages, share, (share + limit - 1) / limit);
}

/// Ranks go stage by stage.
Layout boxes(int stages, int replicas) {
  Layout layout(static_cast<std::size_t>(stages));
  int next = 0;
  for (auto& stage : layout) {
    stage.resize(static_cast<std::size_t>(replicas));
    std::iota(stage.begin(), stage.end(), next);
    next += replicas;
  }
  return layout;
}

std::optional<MeshChoice> pipeline_of(const MeshInput& input, const Cluster& cluster,
                                      const StagesWish& wish, int stages, int replicas) {
  if (static_cast<std::size_t>(stages) > input.facts.front().units.size()) return std::nullopt;
  auto choice = choose_cut(input, cluster, boxes(stages, replicas),
                           {.schedule = wish.schedule,
                            .micro_batches = micro_batches_of(input, wish, stages, replicas),
                            .keeping = wish.keeping});
  if (choice) choice = simulated(input, cluster, std::move(*choice));
  return choice;
}

bool beats(const MeshChoice& a, const MeshChoice& b) {
  if (a.fits() != b.fits()) return a.fits();
  if (!a.fits()) return a.missing_bytes < b.missing_bytes;
  return a.step_s < b.step_s * (1 - kWorthwhile);
}

}  // namespace

std::vector<MeshChoice> choose_stages(const MeshInput& input, const Cluster& cluster,
                                      const StagesWish& wish) {
  std::vector<MeshChoice> all;  // those with fewer stages first
  for (int stages = 1; stages <= cluster.size(); ++stages) {
    const int replicas = cluster.size() / stages;
    if (stages * replicas != cluster.size()) continue;
    if (wish.replicas > 0 && wish.replicas != replicas) continue;
    std::optional<MeshChoice> choice;
    if (stages == 1) {
      std::vector<int> everybody(static_cast<std::size_t>(cluster.size()));
      std::iota(everybody.begin(), everybody.end(), 0);
      choice = choose_data(input, cluster, everybody, wish.keeping);
    } else if (wish.pipelines) {
      choice = pipeline_of(input, cluster, wish, stages, replicas);
    }
    if (choice) all.push_back(std::move(*choice));
  }
  auto best = all.begin();
  for (auto next = all.begin(); next != all.end(); ++next) {
    if (beats(*next, *best)) best = next;
  }
  if (best != all.end()) std::rotate(all.begin(), best, best + 1);
  return all;
}

}  // namespace bimetal::plan
