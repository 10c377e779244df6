#pragma once
// Moves the shares while the job runs. Each rank owns a Balancer and feeds it the same all-gathered
// figures. So all ranks have the same shares without sending them.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "bimetal/balance/shares.h"

namespace bimetal::balance {

/// One rank's report after a step.
struct StepFigures {
  std::int64_t batch = 0;      ///< samples it computed
  double compute_seconds = 0;  ///< its own compute, without waiting for others
  bool out_of_memory = false;  ///< the batch did not fit; the step is to be repeated
  /// The batch of a rank without a share that has measured itself beside the others' work: see
  /// Balancer::shadows. 0 otherwise.
  std::int64_t shadow_batch = 0;
  double shadow_seconds = 0;  ///< that took it
};

/// By measured speed, all alike, or by fixed weights.
enum class Policy { Auto, Equal, Fixed };

/// "auto", "equal" or "fixed". Error(InvalidArgument) for anything else.
Policy policy_named(std::string_view name);

/// A Balancer's options.
struct BalancerOptions {
  Policy policy = Policy::Auto;       ///< how the batch is shared
  std::vector<double> fixed_weights;  ///< for Policy::Fixed, one per rank
  std::int64_t global_batch = 0;      ///< samples of a step over all devices
  /// New shares are taken when they promise a finish at least this much sooner, and for a smaller
  /// gain once it has been on offer for so long that going without it costs more (hysteresis).
  double minimum_gain = 0.02;
  /// Steps whose figures are ignored (warm-up of caches and allocators).
  int warmup_steps = 2;
};

/// Pure: equal calls give equal shares on every rank and platform.
class Balancer {
 public:
  /// `devices` hold the probes' cost models (may be unknown) and memory caps, one per rank.
  /// Errors: InvalidArgument (no device, a batch < 1, weights that don't fit), OutOfMemory (the
  /// caps leave no room for the global batch).
  Balancer(BalancerOptions options, std::vector<Device> devices);

  /// Shares of the next full global batch.
  const Shares& shares() const noexcept { return shares_; }

  /// Samples with which each rank should measure itself beside the next step, and tell in
  /// StepFigures when it is done; 0: it need not. Only ranks whose share is 0 are asked: soon and
  /// often at first, then ever more rarely, so that coming back takes a small part of the time that
  /// the rank was away. Ranks that cannot do that are judged by their probe again after long.
  Shares shadows() const;

  /// Learns from one step; figures[r] is rank r's. Returns whether the shares changed. A rank that
  /// ran out of memory gets a cap of half of its share; the shares then change at once, under any
  /// policy, and nothing is learnt from that step's times. Error(OutOfMemory) naming the rank if
  /// the others cannot take the samples that it must give up.
  bool observe(std::span<const StepFigures> figures);

  /// By rank, as learnt so far.
  std::span<const Device> devices() const noexcept { return devices_; }

  /// Predicted samples per second of rank r working alone on the whole global batch (or on its
  /// memory cap's worth at a time); 0 if it was neither probed nor ever observed.
  double alone_rate(int rank) const;

 private:
  Shares shares_by_policy() const;
  bool lower_caps(std::span<const StepFigures> figures);
  void learn(std::span<const StepFigures> figures);
  std::vector<Device> planned_devices() const;
  Shares next_shares(std::span<const Device> planned) const;
  std::int64_t least_share(std::size_t rank) const;
  double foothold() const;
  void weigh_leaving(std::span<const StepFigures> figures, std::span<const Device> planned);
  bool take_if_better(std::span<const Device> planned);

  /// Facts on a rank besides its costs.
  struct Member {
    int idle_steps = 0;     ///< since it last computed
    int silent_steps = 0;   ///< since it was last measured, shadows included
    int next_shadow = 0;    ///< idle steps after which to measure it
    double headroom = 0.0;  ///< relative time to plan beyond its mean
    double seen = 0.0;      ///< the largest batch of late, fading
    int leaving = 0;        ///< successive small batches that spoke for leaving it out
  };

  BalancerOptions options_;
  std::vector<Device> devices_;
  std::vector<CostModel> probed_;  ///< as given, for ranks that are idle for long
  std::vector<Member> members_;
  Shares shares_;
  int steps_ = 0;
  double gain_on_offer_ = 0.0;  ///< Σ of the gains passed up since the last change
};

}  // namespace bimetal::balance
