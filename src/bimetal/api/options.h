#pragma once
// Named options of a program's own training loop, in the words of the job file (docs/job_file.md).

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "bimetal/optim/gradient_limits.h"
#include "bimetal/parallel/data/replicated_options.h"
#include "bimetal/precision/precision.h"

namespace bimetal {

/// Where parameters, gradients and the optimizer's state live: [zero], docs/zero.md.
struct ZeroOptions {
  int level = 0;  ///< 1: states, 2: and gradients, 3: and parameters are in shards
  /// Weights of the ranks' shards, one for each; empty: by the free memory of each rank's device.
  std::vector<double> shards = {};
  std::string offload_parameters = "none";  ///< level 3: "host" or "disk"; ranks may differ
  /// Where a bimetal::Adam or AdamW keeps its state: "host" or "disk". Ranks may differ.
  std::string offload_optimizer = "none";
  std::filesystem::path offload_path = {};  ///< folder for "disk"
  std::int64_t keep_below = 0;              ///< level 3: smaller parameters stay whole; elements
};

/// How DataParallel computes and updates. The same on every rank, but for micro_batch, recompute
/// and where parameters are offloaded to.
struct DataParallelOptions {
  /// Samples that are computed at once (gradient accumulation): 0 takes what suits the device (64
  /// on a CPU, the whole share on an accelerator).
  std::int64_t micro_batch = 0;
  /// Activations of DataParallel::forward that are dropped and computed again: as train.recompute
  /// (docs/recompute.md).
  std::string recompute = "none";
  std::uint64_t seed = 1;  ///< of a task's parameters
  /// With float16 the loss is scaled, and steps that overflow are skipped by all ranks:
  /// docs/precision.md.
  precision::Precision precision = precision::Precision::float32;
  double loss_scale = 0;                           ///< float16: 0 finds it out
  optim::GradientLimits limits = {};               ///< of the mean gradient, before each update
  ZeroOptions zero = {};                           ///< shards; level 0: none
  parallel::ReplicatedModelOptions parallel = {};  ///< buckets, time limit, compression
};

/// A model in stages, with its tensors in parts, or both: [mesh], docs/pipeline.md, docs/tensor.md.
/// The same on every rank, but for recompute and where `zero` offloads to.
struct PipelineOptions {
  int stages = 2;                       ///< 1: all ranks have all units
  int replicas = 0;                     ///< of each stage; 0: as many as there are ranks for
  std::vector<std::int64_t> cuts = {};  ///< units at which stages but the first begin; empty: so
                                        ///< that each has about as many parameters
  std::string schedule = "1f1b";        ///< as mesh.schedule
  std::int64_t micro_batches = 0;       ///< of a step; 0: what suits the devices and the schedule
  /// Ranks that compute each replica's units together, each with its part of the tensors that the
  /// units split (Unit::splits).
  int tensor = 1;
  std::vector<double> tensor_weights = {};  ///< how large the parts are, one for each; empty: equal
  /// Between the split tensors these ranks have sequences in parts.
  bool sequence_parallel = false;
  std::string recompute = "none";  ///< as train.recompute: docs/recompute.md; ranks may differ
  /// The precision of forward: docs/precision.md.
  precision::Precision precision = precision::Precision::float32;
  double loss_scale = 0;              ///< float16: 0 finds it out
  optim::GradientLimits limits = {};  ///< of the mean gradient, before each update
  ZeroOptions zero = {};  ///< of what each rank has, over its replicas: `shards` is one for each
  parallel::ReplicatedModelOptions parallel = {};  ///< buckets and time limit; no compression
};

}  // namespace bimetal
