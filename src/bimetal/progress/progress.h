#pragma once
// How far training is: the report after each step.
//
// How far training is, in one line for people.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>


namespace bimetal::progress {

/// The staleness of the gradients that a worker of a parameter server has given
/// (docs/parameter_server.md).
struct Staleness {
  std::int64_t updates = 0;  ///< that its gradients became a part of
  std::int64_t sum = 0;      ///< over them, in updates
  std::int64_t max = 0;      ///< the largest
};

/// A worker's totals since the run's start. They only grow.
struct WorkerTotals {
  std::int64_t samples = 0;                 ///< that it has trained on
  double compute_s = 0;                     ///< computing
  double communicate_s = 0, wait_s = 0;     ///< up to the step before
  std::uint64_t bytes_sent = 0;             ///< over the network or loopback; up to the step before
  std::optional<Staleness> staleness = {};  ///< none in all-reduce mode
  double memory_bytes = 0;                  ///< that its process has now; 0: not known
};

/// How the samples of a step go through the stages of a model.
struct PipelineProgress {
  std::string schedule = {};       ///< mesh.schedule
  std::int64_t micro_batches = 0;  ///< of each replica's share, or where stages have replicas of
                                   ///< their own number of all samples
};

/// State after a step; the vectors have one entry per rank. Valid on every rank.
struct Progress {
  std::int64_t epoch = 0, epochs = 0;           ///< epoch counts from 1
  std::int64_t step = 0, steps = 0;             ///< optimizer steps done, and planned in all
  double loss = 0;                              ///< mean over this step's global batch
  double samples_per_s = 0;                     ///< over the last seconds
  double efficiency = 0;                        ///< see docs/balance.md
  double seconds_left = 0;                      ///< to the planned end
  double elapsed_s = 0;                         ///< time of the training steps alone
  std::string counts = "samples";               ///< what rates and shares count: "images", "tokens"
  std::vector<std::int64_t> shares = {};        ///< of the batch, by rank
  std::vector<double> rank_samples_per_s = {};  ///< each one's compute rate
  std::vector<WorkerTotals> workers = {};       ///< empty where they are not known
  std::optional<PipelineProgress> pipeline = {};  ///< where the model is in stages
  std::optional<double> learning_rate = {};       ///< of this step
  std::optional<double> loss_scale = {};          ///< where a worker computes in float16
};

/// "step 340/590  0:42 left  loss 0.4120  efficiency 97 %  8412 images/s (6730 + 1682)  shares …".
/// The important parts come first: a terminal of 80 columns cuts the rest.
std::string progress_line(const Progress& progress);

/// The same for a run that a clock will end: "efficiency 97 %  8412 images/s …".
std::string rate_line(const Progress& progress);

}  // namespace bimetal::progress
