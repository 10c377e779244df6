#include "bimetal/parallel/data/bucket_plan.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <map>
#include <utility>

namespace bimetal::parallel {

namespace {

// The bucket of one type that still takes parameters, and when it is full.
struct OpenBucket {
  BucketPlan plan;
  std::size_t bytes = 0;
  std::size_t capacity = 0;

  void add(std::size_t parameter, const ParameterSize& size) {
    plan.dtype = size.dtype;
    plan.slots.push_back({parameter, plan.count, size.count});
    plan.count += size.count;
    bytes += size.bytes();
  }
};

}  // namespace

std::size_t ParameterSize::bytes() const {
  return static_cast<std::size_t>(count) * c10::elementSize(dtype);
}

std::vector<BucketPlan> plan_buckets(std::span<const ParameterSize> parameters,
                                     std::size_t first_bytes, std::size_t later_bytes) {
  std::vector<BucketPlan> closed;
  std::map<torch::ScalarType, OpenBucket> open;
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const auto [entry, is_first] = open.try_emplace(parameters[i].dtype);
    OpenBucket& bucket = entry->second;
    if (is_first) bucket.capacity = first_bytes;
    bucket.add(i, parameters[i]);
    if (bucket.bytes >= bucket.capacity) {
      closed.push_back(std::move(bucket.plan));
      bucket = OpenBucket();
      bucket.capacity = later_bytes;
    }
  }
  for (auto& [dtype, bucket] : open) {
    if (!bucket.plan.slots.empty()) closed.push_back(std::move(bucket.plan));
  }
  // A bucket is full when its last slot is: the one whose parameter was registered first.
  std::ranges::sort(closed, std::ranges::greater{},
                    [](const BucketPlan& plan) { return plan.slots.back().parameter; });
  return closed;
}

}  // namespace bimetal::parallel
