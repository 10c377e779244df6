#pragma once
// Some samples of a data set, as a data set.

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bimetal/task/dataset.h"

namespace bimetal::data {

/// Sample i is `all`'s samples[i]; one may be there several times. There must be one at least.
class Subset final : public task::Dataset {
 public:
  Subset(std::shared_ptr<const task::Dataset> all, std::vector<std::int64_t> samples)
      : all_(std::move(all)), samples_(std::move(samples)) {}

  std::int64_t size() const override { return std::ssize(samples_); }
  std::int64_t weight(std::int64_t sample) const override {
    return all_->weight(samples_[static_cast<std::size_t>(sample)]);
  }
  task::Values batch(std::span<const std::int64_t> samples) const override {
    std::vector<std::int64_t> of_all;
    of_all.reserve(samples.size());
    for (const auto sample : samples)
      of_all.push_back(samples_.at(static_cast<std::size_t>(sample)));
    return all_->batch(of_all);
  }

 private:
  std::shared_ptr<const task::Dataset> all_;
  std::vector<std::int64_t> samples_;
};

}  // namespace bimetal::data
