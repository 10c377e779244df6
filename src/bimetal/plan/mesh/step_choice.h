#pragma once
// The time and memory of a step in which every device has the whole model, or shards of it.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "bimetal/parallel/schedule/schedule.h"
#include "bimetal/plan/mesh/mesh_plan.h"

namespace bimetal::plan {

/// One device alone, or several with balanced shares; shards (levels 1 to 3) in proportion to their
/// memory. Each computes as many samples at once as its memory has room for. Nothing where a device
/// would get no sample, unless it `may_idle`.
std::optional<MeshChoice> choose_data(const MeshProblem& on, const std::vector<int>& devices,
                                      const Keeping& keeping, bool may_idle = false);

/// Units that were measured one by one, so that all of them together take what a whole step does
/// of so many samples, so many of them at once: seconds, without an update. Nothing of what is not
/// known.
void take_whole_step(ModelFacts& facts, double step_s, double samples, double at_once);

/// Of what is in shards, the part of each of these devices: in proportion to their memory.
std::vector<double> shards_by_memory(const Cluster& cluster, const std::vector<int>& devices);

/// Seconds for each sample of a step on this device, when so many are computed at once.
double seconds_per_sample(const MeshProblem& on, int device, double at_once);

/// All devices, by what a single sample takes.
std::vector<int> fastest_first(const MeshProblem& on);

// The time and memory of a step of one pipeline.

struct PipelineOptions {
  parallel::schedule::Kind schedule = parallel::schedule::Kind::one_f_one_b;
  int chunks = 1;  ///< pieces of each stage
  int micro_batches = 1;
  Keeping keeping = {};  ///< level 0 to 3, recomputation of each unit or none
  /// Units that pieces but the first begin with; empty: the best.
  std::vector<std::size_t> cuts = {};
  bool any_size = false;  ///< micro-batches may be larger than MeshInput::micro_batch
};

/// Numbers of micro-batches that are worth a look where so many devices compute one after the
/// other, rising: powers of two, and what leaves a bubble from half of a step to a tenth.
std::vector<int> micro_batch_counts(int in_line, std::int64_t most);

/// In which order micro-batches go through the stages.
struct WayThrough {
  parallel::schedule::Kind schedule = parallel::schedule::Kind::one_f_one_b;
  int chunks = 1;
};

/// Those that are worth simulating for these stages of a model of so many units, of which is kept
/// what `keeping` says; the first is to be taken unless another is clearly faster.
std::vector<WayThrough> ways_worth_a_try(const Cluster& cluster, const Keeping& keeping,
                                         const Layout& layout, std::size_t units);

/// Cuts the model for these stages (schedule/cut.h) and predicts the step by plain_bound and the
/// exchanges behind it. Where no cut fits into memory, the one that is fastest without regard to
/// it, with what is missing. Nothing for fewer units than pieces, micro-batches without a sample
/// for every device, cuts that cannot be, or interleaved stages that are no box, or whose number
/// does not divide the micro-batches.
std::optional<MeshChoice> choose_cut(const MeshProblem& on, const Layout& layout,
                                     const PipelineOptions& options);

/// The same choice with its step simulated, action by action.
MeshChoice simulated(const MeshProblem& on, MeshChoice choice);

/// Its peak on each device, and what one lacks.
void take_memory(const MeshProblem& on, MeshChoice& choice);

}  // namespace bimetal::plan
