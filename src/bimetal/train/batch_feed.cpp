#include "bimetal/train/batch_feed.h"

#include <torch/torch.h>

#include <algorithm>
#include <utility>

namespace bimetal::train {
namespace {

torch::Tensor to_tensor(std::span<const std::int64_t> indices) {
  auto tensor = torch::empty({static_cast<std::int64_t>(indices.size())}, torch::kInt64);
  std::ranges::copy(indices, tensor.data_ptr<std::int64_t>());
  return tensor;
}

}  // namespace

BatchFeed::BatchFeed(const data::ImageDataset& dataset, data::EpochSampler sampler, int rank,
                     std::int64_t epochs, torch::Dtype dtype, torch::Device device)
    : sampler_(std::move(sampler)),
      prefetcher_(dataset, dtype, device),
      rank_(rank),
      epochs_(epochs) {}

void BatchFeed::draw(std::span<const std::int64_t> shares) {
  if (next_) return;
  const auto before = sampler_.position();
  const auto epoch = before.epoch + (sampler_.remaining() == 0 ? 1 : 0);
  if (epoch >= epochs_) return;
  Plan plan;
  plan.before = before;
  plan.samples = sampler_.next(shares);
  plan.after = sampler_.position();
  plan.ends_epoch = sampler_.remaining() == 0;
  prefetcher_.request(to_tensor(plan.samples.of_rank(rank_)));
  next_ = std::move(plan);
}

data::Batch BatchFeed::take() {
  next_.reset();
  return prefetcher_.take();
}

void BatchFeed::rewind(const data::SamplerPosition& position) {
  prefetcher_.discard();
  next_.reset();
  sampler_.seek(position);
}

}  // namespace bimetal::train
