#pragma once
// A part of the training samples that is not trained on, by which to choose: of settings, of
// checkpoints. Chosen by the test data, what is reported of these would be too good.

#include <cstdint>
#include <vector>

namespace bimetal::data {

/// Numbers of samples, both ascending; together all, each once.
struct HeldOut {
  std::vector<std::int64_t> training, validation;
};

/// Of `size` samples the `part` (0 < part < 1) for validation, to the nearest whole number, at
/// least one sample, and at most all but one. Equal seeds give equal parts on every machine.
/// Error(InvalidArgument) for fewer than two samples.
HeldOut hold_out(std::int64_t size, double part, std::uint64_t seed);

}  // namespace bimetal::data
