#include "bimetal/data/batch_feed.h"

#include <utility>

namespace bimetal::data {

EpochSampler make_sampler(const task::Dataset& dataset, std::uint64_t seed, std::int64_t group) {
  return EpochSampler(dataset.size(), seed, /*shuffle=*/true, task::weights_of(dataset), group);
}

BatchFeed::BatchFeed(std::shared_ptr<const task::Dataset> dataset, EpochSampler sampler, int rank,
                     std::int64_t global_batch, std::int64_t epochs, torch::Device device)
    : sampler_(std::move(sampler)),
      prefetcher_(std::move(dataset), device),
      rank_(rank),
      global_batch_(global_batch),
      epochs_(epochs) {}

void BatchFeed::draw(std::span<const std::int64_t> shares) {
  if (next_) return;
  const auto before = sampler_.position();
  const auto epoch = before.epoch + (sampler_.remaining() == 0 ? 1 : 0);
  if (epoch >= epochs_) return;
  Plan plan;
  plan.before = before;
  plan.samples = sampler_.deal(shares, global_batch_);
  plan.after = sampler_.position();
  plan.ends_epoch = sampler_.remaining() == 0;
  prefetcher_.request(
      task::Draws::of(sampler_.seed(), plan.samples.epoch, plan.samples.of_rank(rank_)));
  next_ = std::move(plan);
}

task::Values BatchFeed::take() {
  next_.reset();
  return prefetcher_.take();
}

void BatchFeed::rewind(const SamplerPosition& position) {
  prefetcher_.discard();
  next_.reset();
  sampler_.seek(position);
}

}  // namespace bimetal::data
