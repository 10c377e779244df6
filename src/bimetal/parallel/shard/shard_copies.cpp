#include "bimetal/parallel/shard/shard_copies.h"

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <utility>

#include "bimetal/comm/wait_for_all.h"
#include "bimetal/parallel/tensor_buffer.h"

namespace bimetal::parallel::shard {
namespace {

/// In their order.
std::vector<int> ranks_with_shards(std::span<const FlatPlan> plans) {
  std::vector<int> ranks;
  const int size = plans.empty() ? 0 : static_cast<int>(plans.front().counts.size());
  for (int rank = 0; rank < size; ++rank) {
    const auto has = [rank](const FlatPlan& plan) {
      return plan.counts[static_cast<std::size_t>(rank)] > 0;
    };
    if (std::ranges::any_of(plans, has)) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

Buddies buddies_of(std::span<const FlatPlan> plans, int rank) {
  const auto ranks = ranks_with_shards(plans);
  const auto found = std::ranges::find(ranks, rank);
  if (found == ranks.end() || ranks.size() < 2) return {};
  const auto at = static_cast<std::size_t>(found - ranks.begin());
  return {.of = ranks[(at + ranks.size() - 1) % ranks.size()],
          .at = ranks[(at + 1) % ranks.size()]};
}

ShardCopies::ShardCopies(const std::vector<FlatPlan>& plans, comm::Group group,
                         std::chrono::milliseconds timeout)
    : plans_(plans),
      group_(std::move(group)),
      timeout_(timeout),
      buddies_(buddies_of(plans, group_.rank())),
      any_(ranks_with_shards(plans).size() > 1) {}

std::vector<torch::Tensor> ShardCopies::exchange(const std::vector<torch::Tensor>& own) {
  const torch::NoGradGuard no_grad;
  const auto deadline = Deadline::after(timeout_);
  std::vector<torch::Tensor> theirs(own.size()), sent;
  std::vector<comm::Work> under_way;
  for (std::size_t flat = 0; flat < own.size(); ++flat) {
    if (!own[flat].defined() || buddies_.of < 0) continue;
    const auto count = plans_[flat].counts[static_cast<std::size_t>(buddies_.of)];
    theirs[flat] =
        torch::empty({static_cast<std::int64_t>(count)}, own[flat].options().device(torch::kCPU));
    if (count == 0) continue;
    under_way.push_back(group_.recv(tensor_buffer(theirs[flat]), buddies_.of, flat, deadline));
  }
  for (std::size_t flat = 0; flat < own.size(); ++flat) {
    if (!own[flat].defined() || buddies_.at < 0 || own[flat].numel() == 0) continue;
    sent.push_back(own[flat].to(torch::kCPU).contiguous());
    under_way.push_back(group_.send(tensor_buffer(sent.back()), buddies_.at, flat, deadline));
  }
  comm::wait_for_all(under_way);
  for (std::size_t flat = 0; flat < own.size(); ++flat) {
    if (theirs[flat].defined()) theirs[flat] = theirs[flat].to(own[flat].device());
  }
  return theirs;
}

}  // namespace bimetal::parallel::shard
