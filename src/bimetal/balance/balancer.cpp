#include "bimetal/balance/balancer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bimetal/balance/check.h"
#include "bimetal/base/error.h"

namespace bimetal::balance {
namespace {

// docs/balance.md, "Moving", gives the reasons for these numbers.

/// Steps after which an idle rank is judged by its probe again: what made it too slow may be over.
constexpr int kReconsiderAfter = 200;

/// How fast the headroom follows, per step and in units of the device's noise.
constexpr double kHeadroomGain = 0.05;

/// No device is planned at less than half of its mean time, however wildly its times vary: steps
/// that took next to nothing would else lead to plans with negative times.
constexpr double kLeastHeadroom = -0.5;

/// A cost model is only trusted near the batches that it has seen: the most that a share may grow
/// in one change, as a factor, and the part of an equal share that any rank may get at once.
constexpr double kGrowth = 1.3;
constexpr double kFoothold = 0.125;

/// Gains below this are approached by halves, which keeps a response steeper than the model's from
/// swinging.
constexpr double kLargeGain = 0.15;

/// A gain must exceed the uncertainty of the fits by this factor.
constexpr double kSignificance = 1.5;

/// A small gain is taken once the sum of it over the steps reaches this many necessary ones.
constexpr double kPatience = 10.0;

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

Balancer::Balancer(BalancerOptions options, std::vector<Device> devices)
    : options_(std::move(options)),
      devices_(std::move(devices)),
      idle_steps_(devices_.size(), 0),
      headroom_(devices_.size(), 0.0) {
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
  return options_.policy == Policy::Auto && take_if_better();
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
                fmt::format("rank {} ran out of memory with {} samples: {}", last_rank,
                            figures[static_cast<std::size_t>(last_rank)].batch, error.what()),
                last_rank);
  }
  gain_on_offer_ = 0.0;
  return true;
}

void Balancer::learn(std::span<const StepFigures> figures) {
  const auto global_batch = static_cast<double>(options_.global_batch);
  for (std::size_t r = 0; r < figures.size(); ++r) {
    const auto& [batch, seconds, out_of_memory] = figures[r];
    CostModel& cost = devices_[r].cost;
    if (batch > 0 && seconds > 0.0 && cost.known()) {
      // Stochastic approximation of the quantile 1 − b/B of its relative distance (the last of
      // all should be the fastest most often: docs/balance.md, "Headroom").
      const double part = static_cast<double>(batch) / global_batch;
      const double distance = seconds / cost.seconds(static_cast<double>(batch)) - 1.0;
      const double below = distance < headroom_[r] ? 1.0 : 0.0;
      headroom_[r] += kHeadroomGain * cost.noise() * (1.0 - part - below);
      headroom_[r] = std::max(headroom_[r], kLeastHeadroom);
    }
    cost.observe(batch, seconds);
    idle_steps_[r] = batch > 0 ? 0 : idle_steps_[r] + 1;
    if (idle_steps_[r] < kReconsiderAfter) continue;
    idle_steps_[r] = 0;
    if (probed_[r].known()) cost = probed_[r];
  }
}

std::vector<Device> Balancer::planned_devices() const {
  std::vector<Device> planned = devices_;
  for (std::size_t r = 0; r < planned.size(); ++r) {
    CostModel& cost = planned[r].cost;
    const double factor = 1.0 + headroom_[r];
    if (cost.known()) cost = CostModel(cost.alpha() * factor, cost.beta() * factor);
  }
  return planned;
}

Shares Balancer::next_shares(std::span<const Device> planned) const {
  std::vector<Device> nearby(planned.begin(), planned.end());
  const double foothold =
      kFoothold * static_cast<double>(options_.global_batch) / static_cast<double>(nearby.size());
  std::int64_t room = 0;
  for (std::size_t r = 0; r < nearby.size(); ++r) {
    const double most = std::max(kGrowth * static_cast<double>(shares_[r]), foothold) + 1.0;
    nearby[r].cap = std::min(nearby[r].cap, static_cast<std::int64_t>(most));
    room += nearby[r].cap;
  }
  // Caps of memory may have forced a share beyond what the others can take over in one change.
  const bool possible = room >= options_.global_batch;
  return balanced_shares(possible ? std::span<const Device>(nearby) : planned,
                         options_.global_batch);
}

bool Balancer::take_if_better() {
  double uncertainty = 0.0;
  for (const Device& device : devices_) {
    if (device.cost.unsettled()) return false;
    uncertainty = std::max(uncertainty, device.cost.uncertainty());
  }
  const std::vector<Device> planned = planned_devices();
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
