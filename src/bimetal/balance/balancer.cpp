#include "bimetal/balance/balancer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bimetal/balance/check.h"
#include "bimetal/base/error.h"

namespace bimetal::balance {
namespace {

/// Steps after which an idle rank is judged by its probe again: what made it too slow may be over.
constexpr int kReconsiderAfter = 200;

/// A small gain is taken once Σ gain over the steps it was on offer reaches this many times
/// minimum_gain: for as long, it cost more to go without it than a change does.
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
    : options_(std::move(options)), devices_(std::move(devices)), idle_steps_(devices_.size(), 0) {
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
  return options_.policy == Policy::Auto && take_if_better(shares_by_policy());
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
  for (std::size_t r = 0; r < figures.size(); ++r) {
    devices_[r].cost.observe(figures[r].batch, figures[r].compute_seconds);
    idle_steps_[r] = figures[r].batch > 0 ? 0 : idle_steps_[r] + 1;
    if (idle_steps_[r] < kReconsiderAfter) continue;
    idle_steps_[r] = 0;
    if (probed_[r].known()) devices_[r].cost = probed_[r];
  }
}

bool Balancer::take_if_better(Shares candidate) {
  const double now = finish_seconds(devices_, shares_);
  const double gain = 1.0 - finish_seconds(devices_, candidate) / now;
  gain_on_offer_ += gain;
  const bool worthwhile =
      gain >= options_.minimum_gain || gain_on_offer_ >= kPatience * options_.minimum_gain;
  if (!worthwhile || candidate == shares_) return false;
  shares_ = std::move(candidate);
  gain_on_offer_ = 0.0;
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
