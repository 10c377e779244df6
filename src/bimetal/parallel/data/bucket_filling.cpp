#include "bimetal/parallel/data/bucket_filling.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "bimetal/base/error.h"

namespace bimetal::parallel {

BucketFilling::BucketFilling(std::vector<torch::Tensor> parameters,
                             std::vector<std::vector<std::size_t>> buckets, Take take, Taken taken,
                             std::size_t late)
    : parameters_(std::move(parameters)),
      buckets_(std::move(buckets)),
      places_(parameters_.size()),
      take_(std::move(take)),
      taken_(std::move(taken)),
      late_(late),
      hooks_(parameters_, [this](std::size_t i) { on_gradient(i); }) {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    for (std::size_t slot = 0; slot < buckets_[i].size(); ++slot) {
      places_[buckets_[i][slot]] = {i, slot};
    }
  }
  expect_anew();
}

void BucketFilling::expect_anew() {
  filled_.clear();
  missing_.clear();
  for (const auto& bucket : buckets_) {
    filled_.emplace_back(bucket.size());
    missing_.push_back(bucket.size());
  }
}

void BucketFilling::during(const std::function<void()>& backward) {
  taking_ = true;
  try {
    backward();
  } catch (...) {
    taking_ = false;
    throw;
  }
  taking_ = false;
}

void BucketFilling::on_gradient(std::size_t parameter) {
  if (!taking_) return;
  const std::lock_guard lock(mutex_);
  const auto [bucket, slot] = places_[parameter];
  if (bucket < late_ || bucket >= buckets_.size()) return;
  if (filled_[bucket][slot]) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("parameter {} of shape [{}] received its gradient in two parts of one "
                            "backward pass; run backward without nested backward calls",
                            parameter, fmt::join(parameters_[parameter].sizes(), ", ")));
  }
  fill(bucket, slot);
}

void BucketFilling::complete(std::size_t bucket) {
  const std::lock_guard lock(mutex_);
  for (std::size_t slot = 0; slot < buckets_[bucket].size(); ++slot) {
    if (!filled_[bucket][slot]) fill(bucket, slot);
  }
}

void BucketFilling::fill(std::size_t bucket, std::size_t slot) {
  take_(bucket, slot);
  filled_[bucket][slot] = true;
  --missing_[bucket];
  taken_(bucket);
}

}  // namespace bimetal::parallel
