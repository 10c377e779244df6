#pragma once
// Training sets of their own for the members of an ensemble (bagging): L. Breiman, "Bagging
// predictors", Machine Learning 24, 1996.

#include <cstdint>
#include <vector>

#include "bimetal/data/images/dataset.h"

namespace bimetal::data {

/// Numbers of `size` samples, drawn with replacement from as many. Equal seeds give equal ones.
std::vector<std::int64_t> draw_samples(std::int64_t size, std::uint64_t seed);

/// As many samples as `dataset` has, drawn from it with replacement: some twice or more, about 37 %
/// of them not at all. Equal seeds give equal sets on every machine. Mean and deviation stay those
/// of the whole set, so that samples look to every member as they will to the ensemble.
ImageDataset bootstrap(const ImageDataset& dataset, std::uint64_t seed);

}  // namespace bimetal::data
