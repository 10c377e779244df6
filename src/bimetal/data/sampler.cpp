#include "bimetal/data/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "bimetal/balance/shares.h"
#include "bimetal/base/error.h"

namespace bimetal::data {
namespace {

std::mt19937_64 engine_of(std::uint64_t seed, std::int64_t epoch) {
  const auto number = static_cast<std::uint64_t>(epoch);
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
  std::seed_seq sequence{low(seed), high(seed), low(number), high(number)};
  return std::mt19937_64(sequence);
}

void check_weights(std::span<const std::int64_t> weights, std::int64_t samples) {
  if (weights.empty()) return;
  if (static_cast<std::int64_t>(weights.size()) != samples) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} weights do not go with {} samples: each needs one", weights.size(),
                            samples));
  }
  const auto wrong = std::ranges::find_if(weights, [](auto weight) { return weight < 1; });
  if (wrong != weights.end()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("sample {} has a weight of {}; the least is 1", wrong - weights.begin(),
                            *wrong));
  }
}

std::int64_t samples_asked_for(std::span<const std::int64_t> shares) {
  const bool valid = std::ranges::all_of(shares, [](auto share) { return share >= 0; });
  const std::int64_t sum = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  if (valid && sum >= 1) return sum;
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format(
          "a step needs at least one sample and no negative share; the {} shares add up to {}",
          shares.size(), sum));
}

}  // namespace

EpochSampler::EpochSampler(std::int64_t dataset_size, std::uint64_t seed, bool shuffle,
                           std::vector<std::int64_t> weights, std::int64_t group)
    : size_(dataset_size),
      seed_(seed),
      shuffle_(shuffle),
      weights_(std::move(weights)),
      group_(group) {
  if (dataset_size < 1) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("a dataset of {} samples cannot be trained on", dataset_size));
  }
  check_weights(weights_, dataset_size);
  if (group < 1 || (group > 1 && !weights_.empty())) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("samples of {} weights cannot be dealt out in groups of {}",
                            weights_.empty() ? "equal" : "unequal", group));
  }
}

std::int64_t EpochSampler::remaining() const noexcept {
  return size_ - position_.offset;
}

std::int64_t EpochSampler::mean_weight(std::int64_t samples) const noexcept {
  if (weights_.empty()) return samples;
  const double sum = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  return std::llround(static_cast<double>(samples) * (sum / static_cast<double>(size_)));
}

EpochSampler::Step EpochSampler::next(std::span<const std::int64_t> shares) {
  const std::int64_t full = samples_asked_for(shares);
  Step step = take(full);
  step.counts = split(shares, step.total);
  step.weights = step.counts;
  return step;
}

/// Only the step's last group may lack samples. It belongs to the last rank that has any.
std::vector<std::int64_t> EpochSampler::split(std::span<const std::int64_t> shares,
                                              std::int64_t samples) const {
  if (group_ == 1) return balance::scale_shares(shares, samples);
  const auto groups = (samples + group_ - 1) / group_;
  auto counts = balance::scale_shares(shares, groups);
  for (auto& count : counts) count *= group_;
  const auto last = std::ranges::find_if(counts.rbegin(), counts.rend(),
                                         [](std::int64_t count) { return count > 0; });
  *last -= groups * group_ - samples;
  return counts;
}

EpochSampler::Step EpochSampler::deal(std::span<const std::int64_t> shares, std::int64_t samples) {
  samples_asked_for(shares);
  if (samples < 1) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("a step needs at least one sample, not {}", samples));
  }
  if (weights_.empty()) return next(balance::scale_shares(shares, samples));

  Step step = take(samples);
  std::vector<std::int64_t> weights;
  for (const auto index : step.indices) {
    weights.push_back(weights_[static_cast<std::size_t>(index)]);
  }
  const std::vector<int> owners = balance::deal_out(weights, shares);
  const std::vector<std::int64_t> drawn = std::exchange(step.indices, {});
  step.counts.assign(shares.size(), 0);
  step.weights.assign(shares.size(), 0);
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      if (static_cast<std::size_t>(owners[i]) != rank) continue;
      step.indices.push_back(drawn[i]);
      ++step.counts[rank];
      step.weights[rank] += weights[i];
    }
  }
  return step;
}

/// Advances over `samples` samples, or the rest. It does not deal them to ranks yet.
EpochSampler::Step EpochSampler::take(std::int64_t samples) {
  if (remaining() == 0) position_ = {position_.epoch + 1, 0};
  order_epoch();
  Step step;
  step.epoch = position_.epoch;
  step.total = std::min(samples, remaining());
  const auto first = order_.begin() + position_.offset;
  step.indices.assign(first, first + step.total);
  position_.offset += step.total;
  return step;
}

void EpochSampler::seek(SamplerPosition position) {
  if (position.epoch < 0 || position.offset < 0 || position.offset > size_) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("sample {} of epoch {} is no place in a dataset of {} samples; the "
                            "checkpoint belongs to another dataset",
                            position.offset, position.epoch, size_));
  }
  position_ = position;
}

/// Fisher–Yates, as in Knuth's TAOCP volume 2, algorithm 3.4.2P.
void EpochSampler::order_epoch() {
  if (ordered_epoch_ == position_.epoch) return;
  ordered_epoch_ = position_.epoch;
  order_.resize(static_cast<std::size_t>(size_));
  std::iota(order_.begin(), order_.end(), std::int64_t{0});
  if (!shuffle_) return;
  std::mt19937_64 engine = engine_of(seed_, position_.epoch);
  for (std::size_t last = order_.size() - 1; last > 0; --last) {
    std::swap(order_[last], order_[uniform_below(last + 1, engine)]);
  }
}

std::int64_t EpochSampler::Step::weight() const {
  return std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
}

std::span<const std::int64_t> EpochSampler::Step::of_rank(int rank) const {
  if (rank < 0 || static_cast<std::size_t>(rank) >= counts.size()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("rank {} has no part in a step of {} ranks", rank, counts.size()));
  }
  const auto before = std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
  return std::span(indices).subspan(
      static_cast<std::size_t>(before),
      static_cast<std::size_t>(counts[static_cast<std::size_t>(rank)]));
}

}  // namespace bimetal::data
