#pragma once
// Which devices train a model, and how: the best of one device alone, data parallelism, ZeRO,
// pipelines and tensor parallelism over some or all devices, by simulating a step of each. Pure;
// docs/plan_model.md describes the search.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bimetal/parallel/schedule/simulate.h"
#include "bimetal/plan/memory/memory_use.h"
#include "bimetal/plan/mesh/cluster.h"
#include "bimetal/plan/model_facts.h"

namespace bimetal::plan {

/// The bytes between stages where activations are compressed (docs/compression.md).
struct ActivationBytes {
  double sent = 1;            ///< of each byte that a unit gives
  bool within_hosts = false;  ///< between two devices of a host, too
};

struct MeshInput {
  std::vector<ModelFacts> facts = {};  ///< of each kind of device; the same units in each
  std::int64_t global_batch = 0;       ///< samples
  std::int64_t micro_batch = 0;        ///< most samples that a device computes at once; 0: any
  int bucket_mb = 25;
  ActivationBytes activations = {};
  bool offloads = false;            ///< states may be kept on disks
  bool uneven = true;               ///< stages may have replicas of their own number
  std::set<std::string> said = {};  ///< MemoryInput::said
  bool parts = true;                ///< tensors may be in parts, as far as the facts say how
  bool own_parts = true;            ///< and stages in parts of their own number
  int most_level = 3;               ///< of ZeRO that the job goes with
  int level_in_parts = 3;           ///< likewise, with tensors in parts
  bool evaluates = true;            ///< RankLoad::evaluates
  std::size_t most = 6;             ///< plans to return, beside those with tensors in parts
};

/// The problem: a model and the devices for it. Both must outlive it.
struct MeshProblem {
  const MeshInput& input;
  const Cluster& cluster;

  /// As that device computes it.
  const ModelFacts& facts_of(int device) const { return input.facts[cluster.device(device).facts]; }
  std::size_t units() const { return input.facts.front().units.size(); }
};

/// Whether all of these, at least one, are the same: numbers of stages, for example.
template <typename Value>
bool all_alike(const std::vector<Value>& values) {
  return std::ranges::all_of(values, [&](const Value& value) { return value == values.front(); });
}

/// The devices of each stage, in the order of the stages.
using Layout = std::vector<std::vector<int>>;

/// Whether a device of each stage has a pipeline with those of all others: all stages have as many,
/// and these as many parts or one each.
bool is_box(const Cluster& cluster, const Layout& layout);

/// Devices that one pipeline's micro-batches go through: one of each stage in a box, otherwise all.
int in_line(const Cluster& cluster, const Layout& layout);

using parallel::schedule::UnitRange;

/// One or several devices that have the same units.
struct MeshStage {
  /// Replica by replica; those that have a replica's tensors in parts are neighbours.
  std::vector<int> devices = {};
  std::vector<std::int64_t> samples = {};  ///< of the global batch that each replica computes
  std::vector<UnitRange> pieces = {};      ///< of the model, in its order: one for each chunk
  std::vector<double> part_weights = {1};  ///< of each of a replica's devices, what part it has

  /// Devices that have a replica's tensors in parts.
  std::size_t parts() const { return part_weights.size(); }
  std::size_t replicas() const { return devices.size() / parts(); }
};

/// Tensor: without stages. A pipeline's stages may have tensors in parts, too.
enum class Scheme { Alone, Data, Pipeline, Tensor };

/// A way to train, and the forecast of its step.
struct MeshChoice {
  Scheme scheme = Scheme::Alone;
  std::vector<MeshStage> stages = {};  ///< one but for pipelines
  Keeping keeping = {};  ///< level (pipelines: that of each stage's replicas), recomputation
  parallel::schedule::Kind schedule = parallel::schedule::Kind::one_f_one_b;
  int chunks = 1;         ///< pieces of each stage: 1 but for interleaved
  bool even = true;       ///< is_box() of its stages
  int micro_batches = 1;  ///< of each replica; if stages are not even, of all together

  double step_s = 0;
  double compute_s = 0;  ///< of the busiest device
  double waiting_s = 0;  ///< of that device: the rest of the step
  double bubble = 0;     ///< part of all devices' time in which nothing is computed
  double sent_s = 0;     ///< gradients and parameters on their way, hidden or not
  double summed_s = 0;   ///< of compute_s: sums of activations over the devices that have parts
  double sums_bytes_per_s = 0;  ///< of the slowest link that these go over
  /// In the order of the stages' devices: the model's part, and what heaps may keep of freed
  /// tensors beside that when it is not at its peak.
  std::vector<double> peak_bytes = {}, kept_bytes = {};
  double missing_bytes = 0;  ///< of the device that lacks most; 0: it fits
  int missing_on = -1;       ///< that device
  std::string reason = {};   ///< why another is better

  bool fits() const { return missing_bytes <= 0; }
  /// The units that all pieces begin with, in the model's order.
  std::vector<std::size_t> begins() const;
  /// Cuts a model of so many units there.
  void take_pieces(const std::vector<std::size_t>& begins, std::size_t units);
  int devices() const;
  Layout layout() const;
  /// By stage: how many replicas it has, and how many devices each of these.
  std::vector<std::size_t> replicas() const;
  std::vector<std::size_t> parts() const;
  std::size_t most_parts() const { return std::ranges::max(parts()); }
  /// Takes the model's needs on each of its devices, in their order: peaks, and missing memory.
  void take_peaks(const Cluster& cluster, const std::vector<double>& needed);
  /// The value that train.micro_batch must have, since without stages a step whose parts do not fit
  /// cannot be repeated in smaller ones. 0: a run finds it by itself.
  std::int64_t most_at_once() const;
};

/// The mesh that a job asks for, as it is written.
struct AskedMesh {
  std::optional<MeshChoice> choice = {};
  std::string reason = {};  ///< without a choice: why it was not planned
};

/// The best in another precision, which changes the results.
struct LowerPrecision {
  std::string name = {};  ///< of train.precision
  MeshChoice best = {};
};

struct MeshPlan {
  std::optional<AskedMesh> asked = {};  ///< nothing: no job asks
  std::vector<MeshChoice> best;         ///< that fit, the fastest first; one of each kind of
                                        ///< plan
  std::vector<MeshChoice> others;       ///< the fastest of those that do not fit
  std::optional<LowerPrecision> lower = {};  ///< nothing: not measured, or nothing fits
  std::size_t tried = 0;
  std::set<std::string> said = {};  ///< the input's
};

/// `asked`: is one of those that are compared. Errors: InvalidArgument for facts that do not go
/// together, or a batch below 1.
MeshPlan plan_mesh(const MeshProblem& on, std::optional<AskedMesh> asked = {});

/// The schedule's run of a pipeline, for a picture: a list for each stage, or, where these are not
/// even, for each replica in their order. One stage for the others, whose micro-batches follow
/// each other.
parallel::schedule::Simulation run_of(const MeshProblem& on, const MeshChoice& choice);

// Plans of meshes in plain words.

/// "pipeline of 3 stages", "2 devices, level 1", "cuda:0 alone".
std::string describe(const Cluster& cluster, const MeshChoice& choice);

/// The job file's keys that ask for it, whatever else a job has: "mesh.stages=2, mesh.cuts=[7]", ….
std::string keys_of(const MeshChoice& choice);

/// For a choice with tensors in parts: "sums of activations take 12.0 ms of a step, over a link of
/// 4.1 Gbit/s".
std::string sums_text(const MeshChoice& choice);

/// Why `choice` is not the one to take: the memory that it lacks, or where its time goes. `best`:
/// nullptr if nothing fits.
std::string why_not(const Cluster& cluster, const MeshChoice& choice, const MeshChoice* best);

/// How a choice in another precision compares with the best in the job's own; nullptr: nothing fits
/// in that.
std::string beside(const MeshChoice& other, const MeshChoice* best);

/// The advice, and how much it gains: lines.
std::string mesh_advice(const Cluster& cluster, const MeshPlan& plan);

// A picture of a step: which device computes what, and when.

/// An SVG with a row for each stage, named by `names`, a box for each action with its micro-batch,
/// and the time below. `title` stands above. Error(InvalidArgument) unless there are as many names.
std::string timeline_svg(const std::string& title, const std::vector<std::string>& names,
                         const parallel::schedule::Simulation& run);

}  // namespace bimetal::plan
