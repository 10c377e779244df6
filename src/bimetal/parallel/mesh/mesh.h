#pragma once
// Who is who in a job whose model is cut: stages of a pipeline × replicas of each × ranks that have
// the tensors of one replica in parts.

#include <string>
#include <vector>

#include "bimetal/comm/group.h"

namespace bimetal::parallel {

struct MeshShape {
  int stages = 1;
  int replicas = 1;
  int tensor = 1;

  int ranks() const noexcept { return stages * replicas * tensor; }
  bool operator==(const MeshShape&) const = default;
};

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

/// "stage 1 of 3, replica 0": what there is one of is left out; "rank 2" where that is all.
std::string name_of(const MeshShape& shape, int rank);

/// The shape of `ranks` ranks; `replicas` 0: as many as there are ranks for. Error(InvalidArgument)
/// for one that does not come to that many ranks, with what would.
MeshShape fit_mesh(int stages, int replicas, int tensor, int ranks);

/// A line per stage, for people: its ranks by replica, and `units`, what each stage has of the
/// model: "units 0-4 (embedding … h.3)".
std::string picture(const MeshShape& shape, const std::vector<std::string>& units);

/// The groups of one rank's mesh, made once. A cheap handle; thread-safe as groups are.
class Mesh {
 public:
  /// Collective over `world`, whose size is shape.ranks().
  Mesh(comm::Group world, const MeshShape& shape);

  const MeshShape& shape() const noexcept { return shape_; }
  const MeshPlace& place() const noexcept { return place_; }
  bool first_stage() const noexcept { return place_.stage == 0; }
  bool last_stage() const noexcept { return place_.stage + 1 == shape_.stages; }

  /// All ranks.
  const comm::Group& world() const noexcept { return world_; }
  /// The stages of this replica, for this rank's part of tensors: its rank in it is its stage.
  const comm::Group& pipeline() const noexcept { return pipeline_; }
  /// Those with the same parameters: its rank in it is its replica.
  const comm::Group& replicas() const noexcept { return replicas_; }
  /// Those with the other parts of this rank's tensors: its rank in it is its part.
  const comm::Group& tensor() const noexcept { return tensor_; }

  /// The name of the rank that has stage `stage` of this pipeline: "stage 1 of 3, replica 0
  /// (rank 2)".
  std::string name_of_stage(int stage) const;

 private:
  MeshShape shape_;
  MeshPlace place_;
  comm::Group world_, pipeline_, replicas_, tensor_;
};

}  // namespace bimetal::parallel
