#include "bimetal/data/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "bimetal/balance/shares.h"
#include "bimetal/base/error.h"
#include "bimetal/data/uniform.h"

namespace bimetal::data {
namespace {

std::mt19937_64 engine_of(std::uint64_t seed, std::int64_t epoch) {
  const auto number = static_cast<std::uint64_t>(epoch);
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  const auto high = [](std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); };
  std::seed_seq sequence{low(seed), high(seed), low(number), high(number)};
  return std::mt19937_64(sequence);
}

}  // namespace

EpochSampler::EpochSampler(std::int64_t dataset_size, std::uint64_t seed, bool shuffle)
    : size_(dataset_size), seed_(seed), shuffle_(shuffle) {
  if (dataset_size < 1) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("a dataset of {} samples cannot be trained on", dataset_size));
  }
}

std::int64_t EpochSampler::remaining() const noexcept {
  return size_ - position_.offset;
}

EpochSampler::Step EpochSampler::next(std::span<const std::int64_t> shares) {
  const bool valid = std::all_of(shares.begin(), shares.end(), [](auto s) { return s >= 0; });
  const std::int64_t full = std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  if (!valid || full < 1) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("a step needs at least one sample and no negative share; the {} shares "
                            "add up to {}",
                            shares.size(), full));
  }
  if (remaining() == 0) position_ = {position_.epoch + 1, 0};
  order_epoch();

  Step step;
  step.epoch = position_.epoch;
  step.total = std::min(full, remaining());
  step.counts = step.total == full ? std::vector<std::int64_t>(shares.begin(), shares.end())
                                   : balance::scale_shares(shares, step.total);
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
