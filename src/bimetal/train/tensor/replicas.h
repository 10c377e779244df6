#pragma once
// Which ranks of a job compute one replica of its model together (mesh.tensor), and stand for one
// device wherever samples are dealt out, counted and reported.

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bimetal/balance/shares.h"
#include "bimetal/comm/group.h"
#include "bimetal/job/job_config.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/precision/precision.h"
#include "bimetal/progress/observer.h"

namespace bimetal::train {

/// Where every rank has the whole model, each is a replica. Immutable.
class Replicas {
 public:
  /// Collective. Errors: those of parallel::fit_mesh.
  Replicas(comm::Group world, const job::MeshConfig& mesh);

  /// Whether replicas are of several ranks.
  bool in_parts() const noexcept { return mesh_.has_value(); }

  /// All ranks.
  const comm::Group& world() const noexcept { return world_; }
  /// The ranks with this one's part of the model. Its rank in it is its replica.
  const comm::Group& group() const noexcept { return mesh_ ? mesh_->replicas() : world_; }
  /// The ranks of this replica, if it is in parts. Its rank in it is the number of its part.
  const comm::Group& parts() const noexcept { return mesh_->tensor(); }

  /// Of each replica, from those of the ranks: it does what its ranks do alone, all together.
  std::vector<balance::Device> devices(const std::vector<balance::Device>& of_ranks) const;
  /// Of each replica, where its ranks are: "cpu + cuda:0". `mine`: of this rank. Collective.
  std::vector<progress::WorkerPlace> places(const progress::WorkerPlace& mine,
                                            std::chrono::milliseconds timeout) const;

  /// How large a replica's parts are to be: mesh.tensor_weights. `alone`: of each rank, any unit; 0
  /// where that is not known. Error(InvalidArgument) unless there is one for each part.
  std::vector<double> part_weights(const job::MeshConfig& mesh,
                                   std::span<const double> alone) const;

  /// What is to be said of a run in parts that did `rate` where a rank does more `alone`, in the
  /// same unit.
  std::optional<std::string> advice(std::span<const double> alone, double rate) const;

 private:
  comm::Group world_;
  std::optional<parallel::Mesh> mesh_;  ///< of parts
};

/// Error(Unsupported), on every rank, unless those of replicas in parts compute in one precision:
/// they add up what they compute. Collective.
void require_one_precision(const Replicas& replicas, precision::Precision mine, Deadline deadline);

}  // namespace bimetal::train
