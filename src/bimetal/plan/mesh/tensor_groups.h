#pragma once
// Devices that compute every layer together, each with its part of the tensors (docs/tensor.md). In
// a plan such a group is one device. Its time is that of its slowest part and the sums of
// activations after each unit. Its memory is that of the device that has least for its part. Groups
// may be of unlike sizes, and of one device each.

#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "bimetal/plan/mesh/mesh_plan.h"
#include "bimetal/plan/mesh/mesh_search.h"

namespace bimetal::plan {

/// The speed of the devices with each part, together, in whole models per second, and the least
/// memory that one of them has. All are 1 if no two differ by more than a tenth.
std::vector<double> parts_by_speed(const MeshProblem& on, const Groups& groups);
std::vector<double> parts_by_memory(const Cluster& cluster, const Groups& groups);

struct TensorGroup {
  std::vector<int> devices = {};
  std::vector<double> weights = {};  ///< of the part that each of them has
};

/// Groups with parts of these weights each, and devices that have every tensor whole.
std::vector<TensorGroup> with_weights(const Groups& groups, const std::vector<double>& weights,
                                      const std::vector<int>& whole = {});

/// The groups of a choice in parts, and the choice of these that expanded() makes it of.
std::pair<std::vector<TensorGroup>, MeshChoice> groups_of(MeshChoice choice);

/// A cluster whose devices are groups. Immutable.
class TensorGroups {
 public:
  /// Its arguments must outlive it. Errors: those of facts_in_parts().
  TensorGroups(const MeshProblem& on, std::vector<TensorGroup> groups);

  /// The model and the cluster as groups are to be planned with: without offloading, which is not
  /// planned with parts, and stages with replicas of their own number, which are not looked for.
  /// Valid as long as this is.
  MeshProblem problem() const noexcept { return {grouped_, *of_groups_}; }

  /// A choice of groups as a choice of devices, with each one's needs and missing memory. The
  /// groups of a stage have the same number of parts, with equal weights.
  MeshChoice expanded(MeshChoice choice) const;

 private:
  /// The common figures of groups that are alike.
  struct Kind {
    std::vector<ModelFacts> parts;  ///< of each member
    std::size_t scarcest = 0;       ///< the member whose memory is filled most
  };
  using Key = std::vector<std::tuple<std::size_t, double, double, double>>;

  const TensorGroup& group(int number) const { return groups_[static_cast<std::size_t>(number)]; }
  std::size_t kind_of(const TensorGroup& group);
  void add_kind(const TensorGroup& group);
  Network network() const;
  std::vector<LinkSpeed> pairs() const;
  LinkSpeed between(const std::vector<int>& from, const std::vector<int>& to) const;
  std::vector<std::vector<double>> shards_of(const MeshStage& stage) const;
  double bytes_of(const MeshChoice& choice, std::size_t stage, std::size_t replica,
                  const ModelFacts& part, double shard) const;
  std::vector<double> needed_by_members(const MeshChoice& choice) const;
  void take_sums(MeshChoice& choice) const;

  const MeshProblem on_;
  const std::vector<TensorGroup> groups_;
  std::map<Key, std::size_t> known_;
  std::vector<Kind> kinds_;
  MeshInput grouped_;  ///< facts by kind of group
  MeshInput sums_;     ///< the same with nothing but the seconds of sums
  std::optional<Cluster> of_groups_;
};

}  // namespace bimetal::plan
