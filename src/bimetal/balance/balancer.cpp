#include "bimetal/balance/balancer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bimetal/balance/checks.h"
#include "bimetal/balance/shares.h"
#include "bimetal/base/error.h"
#include "bimetal/base/typed_text.h"

namespace bimetal::balance {
namespace {

// docs/balance.md, "Moving", gives the reasons for these numbers.

/// Steps after which an idle rank that nobody measures is judged by its probe again: what made it
/// too slow may be over.
constexpr int kReconsiderAfter = 200;

/// Idle steps until a rank first measures itself; later ones come after this part of the time that
/// it has been idle for.
constexpr int kFirstShadow = 4;
constexpr int kShadowPart = 8;
constexpr int kRarestShadow = 50;

/// How fast the headroom follows, per step and in units of the device's noise, and the most of it
/// in the same units.
constexpr double kHeadroomGain = 0.05;
constexpr double kNoisesOfHeadroom = 3.0;

/// No device is planned at less than half of its mean time, however wildly its times vary: steps
/// that took next to nothing would else lead to plans with negative times.
constexpr double kLeastHeadroom = -0.5;

/// A cost model is only trusted near the batches that it has seen: the most that a share may grow
/// in one change, as a factor, and the part of an equal share that any rank may get at once.
constexpr double kGrowth = 1.3;
constexpr double kFoothold = 0.125;

/// The factor of a batch's weight as "seen" after one more step, and the most that a share may
/// shrink at once.
constexpr double kSeenMemory = 0.995;
constexpr int kShrink = 4;

/// Successive observations of a small batch that leaving a rank out takes.
constexpr int kRepeatedEvidence = 3;

/// Gains below this are approached by halves, which keeps a response steeper than the model's from
/// swinging.
constexpr double kLargeGain = 0.15;

/// A gain must exceed the uncertainty of the fits by this factor.
constexpr double kSignificance = 1.7;

/// A small gain is taken once the sum of it over the steps reaches this many necessary ones.
constexpr double kPatience = 3.0;

/// Devices whose balanced shares are in proportion to `weights`: caps then apply as for Auto.
std::vector<Device> proportional_devices(std::span<const Device> devices,
                                         std::span<const double> weights) {
  std::vector<Device> proportional;
  for (std::size_t r = 0; r < devices.size(); ++r) {
    Device device;
    if (weights[r] > 0.0) device = {CostModel(0.0, 1.0 / weights[r]), devices[r].cap};
    if (weights[r] <= 0.0) device.cap = 0;
    proportional.push_back(device);
  }
  return proportional;
}

bool fits(std::span<const Device> devices, const Shares& shares) {
  for (std::size_t r = 0; r < shares.size(); ++r) {
    if (shares[r] > devices[r].cap) return false;
  }
  return true;
}

}  // namespace

Policy policy_named(std::string_view name) {
  if (name == "auto") return Policy::Auto;
  if (name == "equal") return Policy::Equal;
  if (name == "fixed") return Policy::Fixed;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("the balance '{}' is none of auto, equal and fixed", name));
}

Balancer::Balancer(BalancerOptions options, std::vector<Device> devices)
    : options_(std::move(options)), devices_(std::move(devices)), members_(devices_.size()) {
  check_ranks(static_cast<std::int64_t>(devices_.size()));
  if (options_.global_batch < 1) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("a global batch of {} cannot be shared", options_.global_batch));
  }
  if (options_.policy == Policy::Fixed && options_.fixed_weights.size() != devices_.size()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} workers need as many shares; balance lists {}", devices_.size(),
                            options_.fixed_weights.size()));
  }
  for (const Device& device : devices_) probed_.push_back(device.cost);
  shares_ = shares_by_policy();
}

Shares Balancer::shares_by_policy() const {
  if (options_.policy == Policy::Auto) return balanced_shares(devices_, options_.global_batch);
  const bool equal = options_.policy == Policy::Equal;
  const Shares wanted = equal
                            ? equal_shares(static_cast<int>(devices_.size()), options_.global_batch)
                            : weighted_shares(options_.fixed_weights, options_.global_batch);
  if (fits(devices_, wanted)) return wanted;
  const std::vector<double> weights =
      equal ? std::vector<double>(devices_.size(), 1.0) : options_.fixed_weights;
  return balanced_shares(proportional_devices(devices_, weights), options_.global_batch);
}

bool Balancer::observe(std::span<const StepFigures> figures) {
  check_same_ranks(devices_.size(), figures.size());
  if (lower_caps(figures)) return true;
  if (steps_++ < options_.warmup_steps) return false;
  learn(figures);
  if (options_.policy != Policy::Auto) return false;
  const std::vector<Device> planned = planned_devices();
  weigh_leaving(figures, planned);
  return take_if_better(planned);
}

bool Balancer::lower_caps(std::span<const StepFigures> figures) {
  int last_rank = -1;
  for (std::size_t r = 0; r < figures.size(); ++r) {
    if (!figures[r].out_of_memory) continue;
    devices_[r].cap = std::min(devices_[r].cap, figures[r].batch / 2);
    last_rank = static_cast<int>(r);
  }
  if (last_rank < 0) return false;
  try {
    shares_ = shares_by_policy();
  } catch (const Error& error) {
    throw Error(error.code(),
                fmt::format("rank {} ran out of memory with {}: {}", last_rank,
                            counted(figures[static_cast<std::size_t>(last_rank)].batch, "sample"),
                            error.what()),
                last_rank);
  }
  gain_on_offer_ = 0.0;
  return true;
}

void Balancer::learn(std::span<const StepFigures> figures) {
  const auto global_batch = static_cast<double>(options_.global_batch);
  for (std::size_t r = 0; r < figures.size(); ++r) {
    const StepFigures& step = figures[r];
    CostModel& cost = devices_[r].cost;
    Member& member = members_[r];
    if (step.batch > 0 && step.compute_seconds > 0.0 && cost.known()) {
      // Stochastic approximation of the quantile 1 − b/B of its relative distance (the last of
      // all should be the fastest most often: docs/balance.md, "Headroom").
      const auto batch = static_cast<double>(step.batch);
      const double distance = step.compute_seconds / cost.seconds(batch) - 1.0;
      const double below = distance < member.headroom ? 1.0 : 0.0;
      member.headroom += kHeadroomGain * cost.noise() * (1.0 - batch / global_batch - below);
    }
    cost.observe(step.batch, step.compute_seconds);
    cost.observe(step.shadow_batch, step.shadow_seconds);
    // The noise of a burst that is over is no reason to plan for it.
    const double most = kNoisesOfHeadroom * cost.noise();
    member.headroom = std::clamp(member.headroom, std::max(-most, kLeastHeadroom), most);
    const auto measured = std::max(step.batch, step.shadow_batch);
    member.seen = std::max(kSeenMemory * member.seen, static_cast<double>(measured));
    member.idle_steps = step.batch > 0 ? 0 : member.idle_steps + 1;
    member.silent_steps = measured > 0 ? 0 : member.silent_steps + 1;
    if (step.batch > 0) member.next_shadow = kFirstShadow;
    if (step.shadow_batch > 0) {
      member.next_shadow = member.idle_steps +
                           std::clamp(member.idle_steps / kShadowPart, kFirstShadow, kRarestShadow);
    }
    if (member.silent_steps < kReconsiderAfter || options_.policy != Policy::Auto) continue;
    member.silent_steps = 0;
    cost = probed_[r];  // where there was no probe: as the others are, until it is measured
  }
}

std::vector<Device> Balancer::planned_devices() const {
  std::vector<Device> planned = devices_;
  for (std::size_t r = 0; r < planned.size(); ++r) {
    CostModel& cost = planned[r].cost;
    const double factor = 1.0 + members_[r].headroom;
    if (cost.known()) cost = CostModel(cost.alpha() * factor, cost.beta() * factor);
  }
  return planned;
}

Shares Balancer::shadows() const {
  Shares shadows(devices_.size(), 0);
  if (options_.policy != Policy::Auto) return shadows;
  for (std::size_t r = 0; r < shadows.size(); ++r) {
    const bool asked =
        members_[r].idle_steps >= members_[r].next_shadow || devices_[r].cost.contradicted();
    if (shares_[r] > 0 || !asked || devices_[r].cap == 0) continue;
    // As many as it would have if it were as fast as at first: a line is only trusted there.
    std::vector<Device> as_at_first = devices_;
    as_at_first[r].cost = probed_[r];
    const auto share = balanced_shares(as_at_first, options_.global_batch)[r];
    shadows[r] =
        std::min(std::max(share, static_cast<std::int64_t>(foothold()) + 1), devices_[r].cap);
  }
  return shadows;
}

double Balancer::foothold() const {
  return kFoothold * static_cast<double>(options_.global_batch) /
         static_cast<double>(devices_.size());
}

/// To leave a rank out is to trust its line down to no samples at all. So it must have shown that
/// line with a small batch, and more than once.
std::int64_t Balancer::least_share(std::size_t rank) const {
  const auto share = shares_[rank];
  if (share == 0 || members_[rank].leaving >= kRepeatedEvidence) return 0;
  return std::max<std::int64_t>(1, share / kShrink);
}

void Balancer::weigh_leaving(std::span<const StepFigures> figures,
                             std::span<const Device> planned) {
  const Shares best = balanced_shares(planned, options_.global_batch);
  for (std::size_t r = 0; r < best.size(); ++r) {
    if (figures[r].batch == 0) continue;
    const bool small = static_cast<double>(figures[r].batch) <= std::max(1.0, foothold());
    members_[r].leaving = small && best[r] == 0 ? members_[r].leaving + 1 : 0;
  }
}

Shares Balancer::next_shares(std::span<const Device> planned) const {
  std::vector<Device> nearby(planned.begin(), planned.end());
  std::int64_t room = 0;
  for (std::size_t r = 0; r < nearby.size(); ++r) {
    const double most =
        std::max({kGrowth * static_cast<double>(shares_[r]), foothold(), members_[r].seen}) + 1.0;
    nearby[r].cap = std::min(nearby[r].cap, static_cast<std::int64_t>(most));
    room += nearby[r].cap;
  }
  // Caps of memory may have forced a share beyond the others' room for one change.
  if (room < options_.global_batch) return balanced_shares(planned, options_.global_batch);
  // A rank that would get less than its least gets just that, and the others share the rest.
  Shares least(nearby.size(), 0);
  for (std::int64_t left = options_.global_batch;;) {
    Shares shares = balanced_shares(nearby, left);
    bool changed = false;
    for (std::size_t r = 0; r < nearby.size(); ++r) {
      const auto needed = std::min(least_share(r), nearby[r].cap);
      if (least[r] > 0 || shares[r] >= needed) continue;
      least[r] = needed;
      nearby[r].cap = 0;
      left -= needed;
      changed = true;
    }
    if (changed) continue;
    for (std::size_t r = 0; r < shares.size(); ++r) shares[r] += least[r];
    return shares;
  }
}

bool Balancer::take_if_better(std::span<const Device> planned) {
  double uncertainty = 0.0;
  for (const Device& device : devices_) {
    if (device.cost.unsettled()) return false;
    uncertainty = std::max(uncertainty, device.cost.uncertainty());
  }
  Shares candidate = next_shares(planned);
  const double gain = 1.0 - finish_seconds(planned, candidate) / finish_seconds(planned, shares_);
  const double needed = std::max(options_.minimum_gain, kSignificance * uncertainty);
  gain_on_offer_ += gain;
  if (gain < needed && gain_on_offer_ < kPatience * needed) return false;
  if (gain < kLargeGain) {
    for (std::size_t r = 0; r < candidate.size(); ++r) candidate[r] += shares_[r];
    candidate = scale_shares(candidate, options_.global_batch);
  }
  gain_on_offer_ = 0.0;
  if (candidate == shares_) return false;
  shares_ = std::move(candidate);
  return true;
}

double Balancer::alone_rate(int rank) const {
  if (rank < 0 || static_cast<std::size_t>(rank) >= devices_.size()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("there is no rank {} among {}", rank, devices_.size()));
  }
  const Device& device = devices_[static_cast<std::size_t>(rank)];
  return device.cost.rate(std::min(options_.global_batch, device.cap));
}

}  // namespace bimetal::balance
