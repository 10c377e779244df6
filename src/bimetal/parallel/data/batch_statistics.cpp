#include "bimetal/parallel/data/batch_statistics.h"

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/parallel/tensor_buffer.h"

namespace bimetal::parallel {

void sum_over_ranks(std::span<const task::BatchStatistics> statistics, comm::Group group,
                    std::chrono::milliseconds timeout) {
  if (statistics.empty() || group.size() == 1) return;
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> sums;
  for (const auto& one : statistics) sums.push_back(one.sums);
  const auto here = torch::cat(sums);  // of all layers in one copy
  const auto all = here.to(torch::kCPU).to(torch::kFloat64);
  group.all_reduce(tensor_buffer(all), comm::ReduceOp::sum, Deadline::after(timeout)).wait();
  const auto back = all.to(here.options());
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
