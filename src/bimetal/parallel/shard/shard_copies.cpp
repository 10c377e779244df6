#include "bimetal/parallel/shard/shard_copies.h"

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "bimetal/comm/work.h"
#include "bimetal/parallel/tensor_buffer.h"

namespace bimetal::parallel::shard {

Exchange::Exchange(comm::Work work, std::vector<torch::Tensor> memory, torch::Tensor host,
                   torch::Tensor target)
    : under_way_(new UnderWay{std::move(work), std::move(memory)}),
      host_(std::move(host)),
      target_(std::move(target)) {}

Exchange::UnderWay::~UnderWay() {
  work.on_done([kept = std::move(memory)](const std::exception_ptr&) {});
}

void Exchange::wait() {
  if (const auto ended = std::exchange(under_way_, {})) ended->work.wait();
  if (!target_.defined()) return;
  const torch::NoGradGuard no_grad;
  std::exchange(target_, {}).copy_(std::exchange(host_, {}));
}

Exchange gather_parts(comm::Group& group, const torch::Tensor& own, const torch::Tensor& flat,
                      const std::vector<std::size_t>& counts, Deadline deadline) {
  const bool here = flat.is_cpu();
  if (here && own.is_cpu() && own.scalar_type() == flat.scalar_type()) {
    return {group.all_gather(tensor_buffer(own), tensor_buffer(flat), counts, deadline),
            {own, flat}};
  }
  const auto whole = here ? flat : torch::empty(flat.sizes(), flat.options().device(torch::kCPU));
  // The part is kept alive by its copy in `whole`, once the call has begun; so it is put there
  // first where it is not the caller's, or of another type.
  const torch::NoGradGuard no_grad;
  const auto begin = std::accumulate(counts.begin(), counts.begin() + group.rank(), std::size_t{0});
  const auto place = whole.narrow(0, static_cast<std::int64_t>(begin), own.numel());
  place.copy_(own);
  auto work = group.all_gather(tensor_buffer(place), tensor_buffer(whole), counts, deadline);
  if (here) return {std::move(work), {flat}};
  return {std::move(work), {whole}, whole, flat};
}

Exchange reduce_parts(comm::Group& group, const torch::Tensor& flat, const torch::Tensor& own,
                      const std::vector<std::size_t>& counts, Deadline deadline) {
  if (flat.is_cpu()) {
    return {group.reduce_scatter(tensor_buffer(flat), tensor_buffer(own), counts,
                                 comm::ReduceOp::sum, deadline),
            {flat, own}};
  }
  const auto whole = flat.to(torch::kCPU);
  const auto begin = std::accumulate(counts.begin(), counts.begin() + group.rank(), std::size_t{0});
  const auto part = whole.narrow(0, static_cast<std::int64_t>(begin), own.numel());
  return {group.reduce_scatter(tensor_buffer(whole), tensor_buffer(part), counts,
                               comm::ReduceOp::sum, deadline),
          {part},
          part,
          own};
}

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
