#pragma once
// The places of ranks in a job whose model is cut: stages of a pipeline × replicas of each × ranks
// with the tensors of one replica in parts.

#include <span>
#include <string>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/parallel/schedule/schedule.h"

namespace bimetal::parallel {

struct MeshShape {
  int stages = 1;
  int replicas = 1;  ///< of each stage; 0 where they have not equally many
  int tensor = 1;    ///< ranks of a replica; the most of any stage where they have not equally many
  std::vector<int> uneven = {};  ///< then the replicas of each stage; else empty
  std::vector<int> parts = {};   ///< likewise the ranks of a replica of each stage

  /// Whether each replica has a pipeline of its own, a rank of each stage for every part of
  /// tensors; else all ranks are one.
  bool even() const noexcept { return uneven.empty() && parts.empty(); }
  int replicas_of(int stage) const {
    return uneven.empty() ? replicas : uneven[static_cast<std::size_t>(stage)];
  }
  int tensor_of(int stage) const {
    return parts.empty() ? tensor : parts[static_cast<std::size_t>(stage)];
  }
  int ranks() const noexcept;
  /// Replicas of stages that compute a part of the samples together: those of a pipeline.
  int pipeline_ranks() const noexcept;
  bool operator==(const MeshShape&) const = default;
};

/// By stage, the relative sizes of parts on the ranks that have a replica's tensors in parts.
/// Empty: tensors are whole on all stages.
using PartWeights = std::vector<std::vector<double>>;

/// A rank's place; each counts from 0.
struct MeshPlace {
  int stage = 0;
  int replica = 0;
  int tensor = 0;
  bool operator==(const MeshPlace&) const = default;
};

/// Ranks go stage by stage, in a stage replica by replica: the ranks of a tensor group, which talk
/// most, are neighbours.
MeshPlace place_of(const MeshShape& shape, int rank);
int rank_at(const MeshShape& shape, const MeshPlace& place);

/// Whether replicas of these two stages talk through these two of their ranks: part k of the stage
/// with more of them with part k mod t of the one with t.
bool parts_talk(const MeshShape& shape, const MeshPlace& one, const MeshPlace& other);

/// "stage 1 of 3, replica 0". Dimensions of size one are left out; "rank 2" if all of them are.
std::string name_of(const MeshShape& shape, int rank);

/// The shape of `ranks` ranks that is asked for; `replicas` 0: as many as there are ranks for;
/// `uneven` and `parts` may have one number throughout. Error(InvalidArgument) for one that does
/// not come to that many ranks, with a number that would.
MeshShape fit_mesh(MeshShape asked, int ranks);

/// The units of one stage, for a model whose units have these names: "units 0-2 (embedding … h.1)",
/// with several pieces "units 0-2, 6-7 (embedding … h.1, h.5 … head)".
std::string units_text(const std::vector<std::string>& names,
                       std::span<const schedule::UnitRange> pieces);

/// A line per stage, for people: its ranks by replica, and `units`, each stage's units, as in
/// units_text().
std::string picture(const MeshShape& shape, const std::vector<std::string>& units);

/// The groups of one rank's mesh, made once. A cheap handle; thread-safe as groups are.
class Mesh {
 public:
  /// Collective over `world`, whose size is shape.ranks().
  Mesh(comm::Group world, const MeshShape& shape);

  const MeshShape& shape() const noexcept { return shape_; }
  const MeshPlace& place() const noexcept { return place_; }

  /// All ranks.
  const comm::Group& world() const noexcept { return world_; }
  /// The ranks that this rank's micro-batches go through, for its part of tensors. They are the
  /// stages of this replica, and a rank in it is its stage's number. If the shape is not even(),
  /// they are all ranks.
  const comm::Group& pipeline() const noexcept { return pipeline_; }
  /// How many replicas of each stage pipeline() has, and which of them this rank is.
  std::vector<int> widths() const;
  /// The same as schedule::Shape has them: nothing where each stage has but one.
  std::vector<int> windows() const;
  int own_replica() const noexcept { return shape_.even() ? 0 : place_.replica; }
  /// The rank of pipeline() that sends to this rank. It is one of those that are replica `replica`
  /// (below widths()) of stage `stage`, which all have the same.
  int peer(int stage, int replica) const;
  /// Those of them that this rank sends to: to each as its peer(), where another has more parts to
  /// several, where it has fewer, to one or none.
  std::vector<int> receivers(int stage, int replica) const;
  /// Those with the same parameters: its rank in it is its replica.
  const comm::Group& replicas() const noexcept { return replicas_; }
  /// Those with the other parts of this rank's tensors: its rank in it is its part.
  const comm::Group& tensor() const noexcept { return tensor_; }

  /// Rank `peer` of pipeline() as a rank of world().
  int rank_of_peer(int peer) const;
  /// The name of rank `peer` of pipeline(): "stage 1 of 3, replica 0 (rank 2)".
  std::string name_of_peer(int peer) const;
  /// This rank's.
  std::string own_name() const;

 private:
  comm::Group make_pipeline();

  MeshShape shape_;
  MeshPlace place_;
  comm::Group world_, pipeline_, replicas_, tensor_;
};

}  // namespace bimetal::parallel
