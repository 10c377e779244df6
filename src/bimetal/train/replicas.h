#pragma once
// The part of the samples that a rank computes: a replica of the model is a rank, or several that
// compute together and stand for one device.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bimetal/balance/balancer.h"
#include "bimetal/balance/shares.h"
#include "bimetal/comm/group.h"
#include "bimetal/job/job_config.h"
#include "bimetal/parallel/mesh/mesh.h"
#include "bimetal/precision/precision.h"
#include "bimetal/progress/observer.h"
#include "bimetal/progress/worker_summary.h"
#include "bimetal/train/pipeline/mesh_shape.h"

namespace bimetal::train {

// Which ranks of a job compute one replica of its model together (mesh.tensor), and, where there
// are no stages, stand for one device wherever samples are dealt out, counted and reported.

/// The mesh of a job whose model is cut, into stages or tensors. nullptr: every rank has all of it.
/// Collective. Errors: those of shape_of().
std::shared_ptr<const parallel::Mesh> make_mesh(comm::Group world, const job::MeshConfig& mesh);

/// Where every rank has the whole model, each is a replica. Immutable.
class Replicas {
 public:
  /// `mesh`: as make_mesh() has it. The ranks of its stages count one by one.
  Replicas(comm::Group world, std::shared_ptr<const parallel::Mesh> mesh);

  /// Whether replicas are of several ranks that count as one.
  bool in_parts() const noexcept { return mesh_ != nullptr; }
  /// The world's ranks whose figures come as those of one.
  std::vector<int> ranks_of(int replica) const;

  /// All ranks.
  const comm::Group& world() const noexcept { return world_; }
  /// The ranks with this one's part of the model. Its rank in it is its replica.
  const comm::Group& group() const noexcept { return mesh_ ? mesh_->replicas() : world_; }

  /// The devices of the replicas, from those of the ranks. A replica is as fast as its ranks alone,
  /// all together.
  std::vector<balance::Device> devices(const std::vector<balance::Device>& of_ranks) const;
  /// The values of each rank of group(), from those of all ranks; nothing if there is not one for
  /// each.
  std::vector<double> of_this_part(std::span<const double> of_ranks) const;
  /// The place of each replica, from its ranks: "cpu + cuda:0". `mine`: this rank's. Collective.
  std::vector<progress::WorkerPlace> places(const progress::WorkerPlace& mine,
                                            std::chrono::milliseconds timeout) const;

  /// The advice on a run in parts at `rate` if a rank does more `alone`, in the same unit.
  std::optional<std::string> advice(std::span<const double> alone, double rate) const;

 private:
  comm::Group world_;
  std::shared_ptr<const parallel::Mesh> mesh_;  ///< of parts alone
};

/// The relative sizes of the parts of tensors: mesh.tensor_weights; the same on all stages with the
/// same number of parts. `alone`: each rank's speed, any unit; 0 if it is not known.
/// Error(InvalidArgument) unless there is one for each part of a stage that has several.
parallel::PartWeights part_weights(const job::MeshConfig& mesh, const parallel::MeshShape& shape,
                                   std::span<const double> alone);

/// Whether so many ranks are enough for the job to begin (elastic.min_workers), and its lists that
/// have a number for each rank, replica, part or piece have as many as such a job has on them; open
/// meshes are not looked at. Error(InvalidArgument).
void require_counts(const job::JobConfig& job, int ranks);

/// Error(Unsupported), on every rank, unless ranks that have a replica's tensors in parts compute
/// in one precision: they add up their results. Collective over `mesh`.
void require_one_precision(const parallel::Mesh* mesh, precision::Precision mine,
                           Deadline deadline);

// Assigns the parts of a step's samples. Each rank computes its own part. If a model is cut, the
// ranks of a replica compute one part together. If stages have their own numbers of replicas, all
// ranks compute the whole. Such a part is a lane: samplers and balancers deal with lanes.

/// A value; the same on every rank but for mine().
class Lanes {
 public:
  Lanes(const parallel::MeshShape& shape, int rank);
  /// A lane for each rank.
  Lanes(int ranks, int rank) : Lanes(parallel::MeshShape{.replicas = ranks}, rank) {}

  int count() const noexcept { return shape_.even() ? shape_.replicas : 1; }
  int ranks() const noexcept { return shape_.ranks(); }
  int mine() const noexcept { return of(rank_); }
  int of(int rank) const noexcept {
    return shape_.even() ? parallel::place_of(shape_, rank).replica : 0;
  }
  /// Several ranks compute one.
  bool shared() const noexcept { return ranks() > count(); }

  /// The weight that this rank reports of its lane's samples. The lane's stages, and their ranks,
  /// share `weight` evenly, so that together they count each sample once.
  std::int64_t counted(std::int64_t weight) const;

  /// For each rank, its lane's value.
  std::vector<std::int64_t> by_rank(const std::vector<std::int64_t>& by_lane) const;

  /// The ranks' figures of a step, by lane: a lane is as fast as the slowest of its ranks.
  std::vector<balance::StepFigures> learnt(std::span<const progress::RankFigures> figures) const;

 private:
  parallel::MeshShape shape_;
  int rank_;
};

}  // namespace bimetal::train
