#include "bimetal/parallel/data/batch_statistics.h"

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <span>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"

namespace bimetal::parallel {

std::optional<device::LateNumbers> numbers_of(std::span<const task::BatchStatistics> statistics,
                                              const comm::Group& group) {
  if (statistics.empty() || group.size() == 1) return std::nullopt;
  std::vector<torch::Tensor> sums;
  for (const auto& one : statistics) sums.push_back(one.sums);
  return device::LateNumbers(sums);
}

void sum_over_ranks(std::span<const task::BatchStatistics> statistics,
                    const std::optional<device::LateNumbers>& here, comm::Group group,
                    std::chrono::milliseconds timeout) {
  if (!here) return;
  const torch::NoGradGuard no_grad;
  auto all = here->take(Deadline::after(timeout));
  group.all_reduce(comm::buffer(std::span(all)), comm::ReduceOp::sum, Deadline::after(timeout))
      .wait();
  const auto& like = statistics.front().sums;
  const auto count = static_cast<std::int64_t>(all.size());
  const auto host = device::unset_host_buffer(count, like.scalar_type(), like.device());
  host.copy_(torch::from_blob(all.data(), {count}, torch::kFloat64));
  const auto back = host.to(like.device(), /*non_blocking=*/true);
  std::int64_t begin = 0;
  for (const auto& one : statistics) {
    auto target = one.sums;
    target.copy_(back.narrow(0, begin, target.numel()));
    begin += target.numel();
  }
}

void discard(std::span<const task::BatchStatistics> statistics) {
  for (const auto& one : statistics) {
    auto sums = one.sums;
    sums.zero_();
  }
}

}  // namespace bimetal::parallel
