#pragma once
// Does it pay to share a job over several workers? Predicts the time of a step for each way to run
// it, from measured costs. Pure; docs/planning.md derives the formulas and states the assumptions.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/balance/shares.h"

namespace bimetal::plan {

struct PlanWorker {
  std::string name;         ///< for the advice: "cuda:0", "cpu:threads=1"
  balance::CostModel cost;  ///< of one step; unknown: the model does not fit into its memory
};

/// The link between the workers as all-reduces see it (the slowest of several).
struct LinkSpeed {
  double latency_s = 0;    ///< of one round, in which each worker sends one message to the next
  double bytes_per_s = 0;  ///< of one worker, in each direction
};

struct PlanInput {
  std::vector<PlanWorker> workers;          ///< one per rank
  LinkSpeed link;                           ///< ignored where there is one worker
  std::vector<std::uint64_t> bucket_bytes;  ///< of gradients, in the order in which they are sent
  std::int64_t global_batch = 0;            ///< in what `counts` says, as shares and rates are
  std::string counts = "samples";           ///< "images", "tokens"
  int servers = 0;  ///< parameter servers to predict for, on links of their own; 0: none
  int copies = 1;   ///< of each server's part, which each gradient is sent to

  std::uint64_t gradient_bytes() const;
};

/// Alone; or several workers that reduce their gradients, with equal or balanced shares; or with
/// balanced shares through parameter servers.
enum class Way { Alone, Equal, Balanced, Servers };

/// One way to run the job.
struct Prediction {
  Way way = Way::Alone;
  std::vector<int> ranks;    ///< who takes part
  balance::Shares shares;    ///< one per entry of `ranks`
  double compute_s = 0;      ///< until the last of them has computed its share
  double communicate_s = 0;  ///< what communication adds: the part that no computation hides
  double step_s = 0;         ///< the sum of the two
  double samples_per_s = 0;
  double sent_bytes = 0;    ///< by each worker in a step
  double server_bytes = 0;  ///< sent by each parameter server in a step
};

/// Differences below this part of a step are noise: the simpler way is then the better one.
inline constexpr double kWorthwhile = 0.02;

struct Plan {
  /// Each usable worker alone; then, where there are several: the equal split, the balanced one,
  /// the balanced ones of the 2, 3, … fastest, and the parameter servers.
  std::vector<Prediction> predictions;
  std::size_t best = 0;       ///< index of the one to use
  std::vector<int> unusable;  ///< ranks whose cost is unknown; they take part in no prediction

  /// Smallest global batch from which the balanced split of all usable workers beats the fastest
  /// one alone; empty if there is none up to 2²⁰, or only one worker.
  std::optional<std::int64_t> crossover_batch;
  /// If a worker alone is best: the link speed from which sharing this batch would pay; empty if no
  /// link would be fast enough.
  std::optional<double> crossover_bytes_per_s;
  /// Smallest number of parameter servers, each on a link of its own, that beats the balanced split
  /// of all usable workers; empty if as many as workers do not, or `servers` is 0.
  std::optional<int> crossover_servers;

  const Prediction& chosen() const { return predictions[best]; }
};

/// Error(InvalidArgument) unless there are workers, the batch is positive and, for several workers,
/// the link's figures are; Error(OutOfMemory) if no worker is usable.
Plan make_plan(const PlanInput& input);

/// Seconds that a ring all-reduce of `bytes` takes at least: 2(n−1) rounds that each cost the
/// latency and the transfer of bytes/n (Patarasuk & Yuan, J. Parallel Distrib. Comput. 69, 2009).
double ring_seconds(double bytes, double ranks, const LinkSpeed& link);

/// Part of a step's computation that communication hides behind.
inline constexpr double kHidden = 0.5;

/// The seconds left to wait for communication that may begin while backward runs, beyond `hiding_s`
/// of computation. `last_s` of it begins only when backward ends.
double left_to_wait_for(double all_s, double last_s, double hiding_s);

/// The seconds that reducing gradients adds to a step of `compute_s`. Gradients travel while
/// backward still runs: half of the computation hides them. (Backward is about two thirds of a
/// step, and its beginning has nothing to send yet.) The last bucket becomes ready at the very end
/// and is never hidden.
double exposed_seconds(double compute_s, const PlanInput& input, int ranks);

/// The same with `servers` parameter servers that share the parameters, on links like the workers'
/// (Jiang et al., BytePS, OSDI 2020, section 3): parameters come before a step and are not hidden,
/// gradients go as above. A server's link carries the traffic of all workers with it.
double exposed_by_servers(double compute_s, const PlanInput& input, int ranks, int servers);

// A plan in plain words.

/// Which way to run the job, why, and from where on another one would be better: a few sentences,
/// each on a line of its own.
std::string advice(const PlanInput& input, const Plan& plan);

/// "830 µs", "12.3 ms", "1.25 s".
std::string seconds_text(double seconds);

/// "12.3 GFLOP", "1.2 TFLOP".
std::string operations_text(double operations);

/// As network links are sold: "940 Mbit/s", "25.0 Gbit/s".
std::string link_text(double bytes_per_s);

}  // namespace bimetal::plan
