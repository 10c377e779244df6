#include "bimetal/task/tensor_ranks.h"

#include <torch/csrc/api/include/torch/types.h>

#include <utility>

namespace bimetal::task {
namespace {

std::shared_ptr<const TensorRanks>& innermost_ranks() noexcept {
  thread_local std::shared_ptr<const TensorRanks> ranks;
  return ranks;
}

}  // namespace

TensorScope::TensorScope(std::shared_ptr<const TensorRanks> ranks)
    : before_(std::exchange(innermost_ranks(), std::move(ranks))) {}

TensorScope::~TensorScope() {
  innermost_ranks() = std::move(before_);
}

const std::shared_ptr<const TensorRanks>& current_tensor_ranks() noexcept {
  return innermost_ranks();
}

Part part_here(std::int64_t pieces) {
  const auto& ranks = current_tensor_ranks();
  return ranks ? ranks->part(pieces) : Part{0, pieces};
}

std::optional<Part> positions_here() {
  const auto& ranks = current_tensor_ranks();
  return ranks ? ranks->positions() : std::nullopt;
}

torch::Tensor shared_by_tensor_ranks(const torch::Tensor& x) {
  const auto& ranks = current_tensor_ranks();
  return ranks ? ranks->shared(x) : x;
}

torch::Tensor sum_over_tensor_ranks(const torch::Tensor& x) {
  const auto& ranks = current_tensor_ranks();
  return ranks ? ranks->sum(x) : x;
}

torch::Tensor cross_entropy_sum(const torch::Tensor& logits, const torch::Tensor& targets,
                                std::int64_t vocabulary, std::int64_t ignored) {
  const auto& ranks = current_tensor_ranks();
  // Logits of the whole vocabulary are of a model that nobody has cut there.
  if (ranks && logits.size(1) != vocabulary) {
    return ranks->cross_entropy_sum(logits, targets, vocabulary, ignored);
  }
  return torch::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum, ignored);
}

}  // namespace bimetal::task
