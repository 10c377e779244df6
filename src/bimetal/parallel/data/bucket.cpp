#include "bimetal/parallel/data/bucket.h"

#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <span>
#include <utility>

namespace bimetal::parallel {

Bucket::Bucket(BucketPlan plan, const std::vector<torch::Tensor>& parameters, torch::Tensor flat)
    : plan_(std::move(plan)), flat_(std::move(flat)) {
  used_ = flat_.narrow(0, plan_.count, static_cast<std::int64_t>(plan_.slots.size()));
  used_here_.resize(plan_.slots.size());
  views_.reserve(plan_.slots.size());
  for (const auto& slot : plan_.slots) {
    // Detached: a gradient may be a view of memory, but autograd must not take it for a view of a
    // tensor, whose in-place detach() it would refuse.
    views_.push_back(
        flat_.narrow(0, slot.offset, slot.count).view(parameters[slot.parameter].sizes()).detach());
  }
}

std::vector<comm::Matrix> Bucket::matrices() const {
  std::vector<comm::Matrix> matrices;
  for (const auto& view : views_) {
    const auto count = static_cast<std::size_t>(view.numel());
    if (count == 0) continue;
    const auto rows = view.dim() > 1 ? static_cast<std::size_t>(view.size(0)) : 1;
    matrices.push_back({rows, count / rows});
  }
  return matrices;
}

bool Bucket::all_used_here() const {
  return std::ranges::all_of(used_here_, [](double used) { return used != 0; });
}

void Bucket::close() {
  if (all_used_here()) {
    used_.fill_(1);  // without a copy to a device
  } else {
    used_.copy_(torch::from_blob(used_here_.data(), used_.sizes(), torch::kFloat64));
  }
}

std::vector<bool> Bucket::used_by_any() const {
  if (all_used_here()) return std::vector<bool>(used_here_.size(), true);
  const torch::Tensor ranks = used_.to(torch::kCPU, torch::kFloat64);
  const std::span counts(ranks.const_data_ptr<double>(), plan_.slots.size());
  std::vector<bool> used(counts.size());
  std::transform(counts.begin(), counts.end(), used.begin(),
                 [](double count) { return count > 0; });
  return used;
}

}  // namespace bimetal::parallel
