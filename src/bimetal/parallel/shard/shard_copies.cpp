#include "bimetal/parallel/shard/shard_copies.h"

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "bimetal/comm/work.h"
#include "bimetal/parallel/group_room.h"

namespace bimetal::parallel::shard {

Exchange::Exchange(Call call, device::CopyMark copied, std::vector<torch::Tensor> memory,
                   torch::Tensor host, torch::Tensor target)
    : call_(std::move(call)),
      copied_(std::move(copied)),
      under_way_(new UnderWay{comm::Work(), std::move(memory)}),
      host_(std::move(host)),
      target_(std::move(target)) {}

Exchange::UnderWay::~UnderWay() {
  work.on_done([kept = std::move(memory)](const std::exception_ptr&) {});
}

Exchange& Exchange::begin(Deadline deadline) {
  copied_.wait(deadline);
  under_way_->work = std::exchange(call_, {})(deadline);
  return *this;
}

void Exchange::wait() {
  if (const auto ended = std::exchange(under_way_, {})) ended->work.wait();
  if (!target_.defined()) return;
  const torch::NoGradGuard no_grad;
  // Page-locked memory is kept by what torch's allocator knows of copies out of it.
  std::exchange(target_, {}).copy_(std::exchange(host_, {}), /*non_blocking=*/true);
}

namespace {

std::int64_t begin_of_own(const comm::Group& group, const std::vector<std::size_t>& counts) {
  return static_cast<std::int64_t>(
      std::accumulate(counts.begin(), counts.begin() + group.rank(), std::size_t{0}));
}

/// Once the card has come to the call.
Exchange gather_on_cards(Peers& peers, const torch::Tensor& own, const torch::Tensor& flat,
                         const std::vector<std::size_t>& counts) {
  const torch::NoGradGuard no_grad;
  const auto place = flat.narrow(0, begin_of_own(peers.group, counts), own.numel());
  if (place.data_ptr() != own.data_ptr()) place.copy_(own, /*non_blocking=*/true);
  return {[&peers, &counts, flat](Deadline deadline) {
            return peers.island->gather(flat, counts, comm_dtype_of(flat), deadline);
          },
          device::mark_current_stream(flat.device()),
          {flat, own}};
}

Exchange reduce_on_cards(Peers& peers, const torch::Tensor& flat, const torch::Tensor& own,
                         const std::vector<std::size_t>& counts) {
  return {[&peers, &counts, flat, own](Deadline deadline) {
            return peers.island->reduce_scatter(flat, own, counts, comm_dtype_of(flat), deadline);
          },
          device::mark_current_stream(flat.device()),
          {flat, own}};
}

}  // namespace

Exchange gather_parts(Peers& peers, const torch::Tensor& own, const torch::Tensor& flat,
                      const std::vector<std::size_t>& counts) {
  if (peers.island) return gather_on_cards(peers, own, flat, counts);
  auto& group = peers.group;
  const auto call = [&group, &counts](const torch::Tensor& part, const torch::Tensor& whole) {
    return [&group, &counts, part = tensor_buffer(part), whole = tensor_buffer(whole)](
               Deadline deadline) { return group.all_gather(part, whole, counts, deadline); };
  };
  const bool here = flat.is_cpu();
  if (here && own.is_cpu() && own.scalar_type() == flat.scalar_type()) {
    return {call(own, flat), {}, {own, flat}};
  }
  const auto whole =
      here ? flat : device::unset_host_buffer(flat.numel(), flat.scalar_type(), flat.device());
  // The part is kept alive by its copy in `whole`, once the call has begun; so it is put there
  // first where it is not the caller's, or of another type.
  const torch::NoGradGuard no_grad;
  const auto place = whole.narrow(0, begin_of_own(group, counts), own.numel());
  device::HostStaging staging(own.device());
  std::vector<torch::Tensor> memory = {whole};
  // In the type that it travels in, which is kept while it is copied.
  if (!own.is_cpu()) memory.push_back(own.to(whole.scalar_type()));
  staging.to_host(own.is_cpu() ? own : memory.back(), place);
  if (here) return {call(place, whole), staging.mark_to_host(), std::move(memory)};
  return {call(place, whole), staging.mark_to_host(), std::move(memory), whole, flat};
}

Exchange reduce_parts(Peers& peers, const torch::Tensor& flat, const torch::Tensor& own,
                      const std::vector<std::size_t>& counts) {
  if (peers.island) return reduce_on_cards(peers, flat, own, counts);
  auto& group = peers.group;
  const auto call = [&group, &counts](const torch::Tensor& whole, const torch::Tensor& part) {
    return [&group, &counts, whole = tensor_buffer(whole),
            part = tensor_buffer(part)](Deadline deadline) {
      return group.reduce_scatter(whole, part, counts, comm::ReduceOp::sum, deadline);
    };
  };
  if (flat.is_cpu()) return {call(flat, own), {}, {flat, own}};
  const auto whole = device::unset_host_buffer(flat.numel(), flat.scalar_type(), flat.device());
  device::HostStaging staging(flat.device());
  staging.to_host(flat, whole);
  const auto part = whole.narrow(0, begin_of_own(group, counts), own.numel());
  return {call(whole, part), staging.mark_to_host(), {whole, flat}, part, own};
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
