#include "bimetal/plan/mesh/mesh_search.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "bimetal/plan/memory/memory_plan.h"

namespace bimetal::plan {
namespace {

constexpr std::size_t kRefined = 8;       // layouts that are looked at closely
constexpr std::size_t kSimulated = 6;     // choices whose step is simulated
constexpr std::size_t kInterleaved = 3;   // of these, also with several pieces for each stage
constexpr int kShifts = 3;                // rounds of moving cuts
constexpr std::size_t kShiftedUpTo = 8;   // pieces
constexpr int kClimbs = 4;                // rounds of exchanging places
constexpr std::size_t kClimbedUpTo = 12;  // devices
constexpr double kHopeless = 1.2;         // of 1F1B's step, with several pieces for each stage

enum class Replicas { One, Even, Uneven };

Replicas replicas_of(const Cluster& cluster, const Layout& layout) {
  if (!is_box(cluster, layout)) return Replicas::Uneven;
  return layout.front().size() > 1 ? Replicas::Even : Replicas::One;
}

class Search {
 public:
  Search(const MeshProblem& on, int most_level)
      : on_(on),
        most_level_(most_level),
        fastest_first_(fastest_first(on)),
        own_parts_(std::ranges::any_of(on.cluster.devices(), [&](const MeshDevice& device) {
          return device.parts != on_.cluster.device(0).parts;
        })) {}

  FoundMeshes run() {
    if (!own_parts_) alone();
    if (!own_parts_) data();
    if (on_.cluster.size() > 1) pipelines();
    return {std::move(found_), tried_};
  }

 private:
  static void add_to(std::vector<MeshChoice>& all, std::optional<MeshChoice> choice) {
    if (choice) all.push_back(std::move(*choice));
  }

  void alone() {
    double slowest = -1;
    for (const int device : fastest_first_) {
      // Among equal devices, the first.
      const double seconds = seconds_per_sample(on_, device, 1);
      if (seconds == slowest) continue;
      slowest = seconds;
      for (const auto& keeping : keepings(0, 0, {})) {
        add_to(found_, choose_data(on_, {device}, keeping));
        ++tried_;
      }
    }
  }

  void data() {
    if (on_.cluster.size() < 2) return;
    const auto disks = on_.input.offloads ? std::vector{Place::Disk} : std::vector<Place>();
    for (const auto count : counts_of(on_.cluster, fastest_first_)) {
      const std::vector<int> devices(fastest_first_.begin(),
                                     fastest_first_.begin() + static_cast<std::ptrdiff_t>(count));
      for (const auto& keeping : keepings(0, most_level_, disks)) {
        add_to(found_, choose_data(on_, devices, keeping));
        ++tried_;
      }
    }
  }

  std::optional<MeshChoice> choose(const Layout& layout, int micro_batches,
                                   const Keeping& keeping) {
    ++tried_;
    return choose_cut(on_, layout, {.micro_batches = micro_batches, .keeping = keeping});
  }

  /// Replicas of a stage may have shards of it; a step of level 3 needs less than one of level 2
  /// where parameters come in half.
  int most_level_of(const Layout& layout) const {
    if (replicas_of(on_.cluster, layout) == Replicas::One) return 0;
    const auto& facts = on_.input.facts.front();
    const bool half = facts.alike && std::ranges::any_of(facts.units, [](const auto& unit) {
                        return unit.halved > 0;
                      });
    return std::min(half ? 3 : 2, most_level_);
  }

  /// With many micro-batches; recomputation, and then shards, only where there is no other way.
  std::optional<MeshChoice> first_look(const Layout& layout) {
    const auto stages = in_line(on_.cluster, layout);
    for (const int micro_batches : {4 * stages, 2 * stages, stages, stages / 2, 1}) {
      if (micro_batches < 1) continue;
      auto best = choose(layout, micro_batches, {});
      if (!best) continue;
      for (int level = 0; level <= most_level_of(layout) && !best->fits(); ++level) {
        auto less = choose(layout, micro_batches, {.level = level, .recomputed_at_once = 1});
        if (less && better(*less, *best)) best = std::move(less);
      }
      if (!best->fits()) best = with_states_on_disk(layout, std::move(*best));
      return best;
    }
    return std::nullopt;
  }

  /// Slow, and the last choice if nothing else fits.
  MeshChoice with_states_on_disk(const Layout& layout, MeshChoice best) {
    if (!on_.input.offloads || most_level_ < 1) return best;
    for (const std::size_t recomputed : {std::size_t{0}, std::size_t{1}}) {
      const auto choice =
          choose(layout, best.micro_batches,
                 {.level = 1, .optimizer = Place::Disk, .recomputed_at_once = recomputed});
      if (choice && better(*choice, best)) best = *choice;
    }
    return best;
  }

  MeshChoice close_look(MeshChoice best) {
    const auto layout = best.layout();
    for (const int micro_batches :
         micro_batch_counts(in_line(on_.cluster, layout), on_.input.global_batch)) {
      for (int level = 0; level <= most_level_of(layout); ++level) {
        for (const std::size_t recomputed : {std::size_t{0}, std::size_t{1}}) {
          const auto choice =
              choose(layout, micro_batches, {.level = level, .recomputed_at_once = recomputed});
          if (choice && better(*choice, best)) best = *choice;
        }
      }
      if (best.keeping.optimizer != Place::Disk) continue;
      const auto choice = choose(layout, micro_batches, best.keeping);
      if (choice && better(*choice, best)) best = *choice;
    }
    return best;
  }

  /// The best of each number of stages and replicas go on, then whatever else is best.
  std::vector<MeshChoice> promising(std::vector<MeshChoice> all) const {
    std::ranges::stable_sort(all, better);
    std::vector<MeshChoice> kept, rest;
    std::map<std::pair<std::size_t, Replicas>, int> seen;
    for (auto& one : all) {
      const auto key = std::pair(one.stages.size(), replicas_of(on_.cluster, one.layout()));
      (seen[key]++ == 0 ? kept : rest).push_back(std::move(one));
    }
    for (auto& one : rest) {
      if (kept.size() >= kRefined) break;
      kept.push_back(std::move(one));
    }
    if (kept.size() > kRefined) kept.resize(kRefined);
    return kept;
  }

  void climb(MeshChoice& best) {
    if (static_cast<std::size_t>(best.devices()) > kClimbedUpTo ||
        on_.cluster.size() <= kSearchedThrough || own_parts_) {
      return;
    }
    for (int round = 0; round < kClimbs; ++round) {
      auto next = best;
      for (const auto& layout : neighbours_of(best.layout())) {
        if (!may_be(layout)) continue;
        auto choice = choose(layout, best.micro_batches, best.keeping);
        if (choice && better(*choice, next)) next = std::move(*choice);
      }
      if (!better(next, best)) return;
      best = std::move(next);
    }
  }

  /// The replicas of a stage are in as many parts each; where all stages are, that is the search of
  /// a cluster whose devices are.
  bool may_be(const Layout& layout) const {
    if (!on_.input.uneven && !is_box(on_.cluster, layout)) return false;
    std::set<int> of_stages;
    for (const auto& stage : layout) {
      const int parts = on_.cluster.device(stage.front()).parts;
      const bool alike = std::ranges::all_of(
          stage, [&](int device) { return on_.cluster.device(device).parts == parts; });
      if (!alike) return false;
      of_stages.insert(parts);
    }
    return !own_parts_ || of_stages.size() > 1;
  }

  void pipelines() {
    std::vector<MeshChoice> all;
    for (const auto& layout : layouts_of(on_.cluster, fastest_first_, on_.units(), !own_parts_)) {
      if (may_be(layout)) add_to(all, first_look(layout));
    }
    auto kept = promising(std::move(all));
    for (auto& one : kept) one = close_look(std::move(one));
    std::ranges::stable_sort(kept, better);
    if (!kept.empty()) climb(kept.front());
    for (std::size_t i = 0; i < kept.size(); ++i) {
      if (i >= kSimulated) break;
      add_to(found_, simulate_each(kept[i], /*interleaved=*/i < kInterleaved));
    }
  }

  /// By 1F1B, or another schedule where that is clearly faster and fits.
  MeshChoice simulate_each(const MeshChoice& one, bool interleaved) {
    std::optional<MeshChoice> best;
    for (const auto& way : ways_worth_a_try(on_.cluster, one.keeping, one.layout(), on_.units())) {
      const bool chunks = way.chunks > 1;
      if (chunks && !interleaved) break;
      auto other = in_way(one, way);
      // Both by the formula, which says too much of slow links.
      if (!other || (chunks && other->step_s > one.step_s * kHopeless)) continue;
      other = refined(std::move(*other));
      const bool clearly =
          best && other->fits() && other->step_s < best->step_s * (1 - kWorthwhile);
      if (!best || clearly) best = std::move(other);
    }
    return std::move(*best);
  }

  /// Stages of several pieces are cut anew. Fewer and larger micro-batches may do: the formula says
  /// which number is better.
  std::optional<MeshChoice> in_way(const MeshChoice& one, const WayThrough& way) {
    auto same = one;
    same.schedule = way.schedule;
    if (way.schedule != parallel::schedule::Kind::interleaved) return same;
    const auto stages = static_cast<int>(one.stages.size());
    const auto near = [&](int count) {
      return parallel::schedule::micro_batches_near(way.schedule, stages, count);
    };
    const int same_bubble = one.micro_batches / way.chunks;
    std::optional<MeshChoice> best;
    for (const int count : std::set{near(one.micro_batches), near(std::max(1, same_bubble))}) {
      ++tried_;
      auto choice = choose_cut(on_, one.layout(),
                               {.schedule = way.schedule,
                                .chunks = way.chunks,
                                .micro_batches = count,
                                .keeping = one.keeping});
      if (choice && (!best || better(*choice, *best))) best = std::move(choice);
    }
    return best;
  }

  /// The cut is the best by a formula: cuts beside it may be better as they run.
  MeshChoice refined(MeshChoice best) {
    take_memory(on_, best);
    best = simulated(on_, best);
    const auto units = on_.units();
    for (int round = 0; round < kShifts; ++round) {
      const auto before = best;
      const auto begins = before.begins();
      if (begins.size() > kShiftedUpTo) return best;
      for (std::size_t cut = 1; cut < begins.size(); ++cut) {
        for (const int by : {-1, 1}) {
          auto moved = begins;
          moved[cut] += static_cast<std::size_t>(by);
          const auto behind = cut + 1 < moved.size() ? moved[cut + 1] : units;
          if (moved[cut] <= moved[cut - 1] || moved[cut] >= behind) continue;
          auto next = before;
          next.take_pieces(moved, units);
          ++tried_;
          take_memory(on_, next);
          next = simulated(on_, next);
          if (better(next, best)) best = std::move(next);
        }
      }
      if (!better(best, before)) break;
    }
    return best;
  }

  const MeshProblem on_;
  const int most_level_;
  const std::vector<int> fastest_first_;
  const bool own_parts_;  ///< devices stand for unlike numbers of them
  std::vector<MeshChoice> found_;
  std::size_t tried_ = 0;
};

}  // namespace

bool better(const MeshChoice& a, const MeshChoice& b) {
  if (a.fits() != b.fits()) return a.fits();
  return a.fits() ? a.step_s < b.step_s : a.missing_bytes < b.missing_bytes;
}

FoundMeshes search_meshes(const MeshProblem& on, int most_level) {
  return Search(on, most_level).run();
}

}  // namespace bimetal::plan
