#pragma once
// Which gradients travel together. A pure function of the parameters' sizes and types, so that all
// ranks get the same buckets, whatever their devices.

#include <torch/csrc/api/include/torch/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace bimetal::parallel {

struct ParameterSize {
  torch::ScalarType dtype = torch::kFloat32;
  std::int64_t count = 0;  ///< elements

  std::size_t bytes() const;
};

struct BucketPlan {
  struct Slot {
    std::size_t parameter = 0;  ///< index into the list that was planned
    std::int64_t offset = 0;    ///< first element in the bucket
    std::int64_t count = 0;
  };

  torch::ScalarType dtype = torch::kFloat32;
  std::vector<Slot> slots;  ///< in the order in which backward is expected to fill them
  std::int64_t count = 0;   ///< elements of all slots together
};

/// Backward yields gradients roughly in reverse order of registration, so parameters are taken in
/// that order, each type into buckets of its own. A bucket closes once it holds `first_bytes` (the
/// first of its type) or `later_bytes`: it may exceed that by its last gradient, which is better
/// than holding back a large one until the many small ones behind it are there. Buckets are listed
/// in the order in which they are expected to fill. Every parameter is in exactly one bucket.
std::vector<BucketPlan> plan_buckets(std::span<const ParameterSize> parameters,
                                     std::size_t first_bytes, std::size_t later_bytes);

}  // namespace bimetal::parallel
