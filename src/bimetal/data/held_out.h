#pragma once
// A part of the training samples that is not trained on, for choosing settings and checkpoints. If
// the test data made that choice, their reported figures would be too good.

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bimetal/data/images/dataset.h"
#include "bimetal/task/task.h"

namespace bimetal::data {

// Some samples of a data set, as a data set.

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

/// Numbers of samples, both ascending; together all, each once.
struct HeldOut {
  std::vector<std::int64_t> training, validation;
};

/// Holds out the fraction `part` (0 < part < 1) of `size` samples for validation: to the nearest
/// whole number, at least one sample, and at most all but one. Equal seeds give equal parts on
/// every machine. Error(InvalidArgument) for fewer than two samples.
HeldOut hold_out(std::int64_t size, double part, std::uint64_t seed);

// Training sets of their own for the members of an ensemble (bagging): L. Breiman, "Bagging
// predictors", Machine Learning 24, 1996.

/// Numbers of `size` samples, drawn with replacement from as many. Equal seeds give equal ones.
std::vector<std::int64_t> draw_samples(std::int64_t size, std::uint64_t seed);

/// As many samples as `dataset` has, drawn from it with replacement: some twice or more, about 37 %
/// of them not at all. Equal seeds give equal sets on every machine. Mean and deviation stay those
/// of the whole set, so that samples look to every member as they will to the ensemble.
ImageDataset bootstrap(const ImageDataset& dataset, std::uint64_t seed);

}  // namespace bimetal::data
