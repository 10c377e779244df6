#include "bimetal/parallel/shard/part_exchange.h"

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <numeric>
#include <utility>

#include "bimetal/parallel/tensor_buffer.h"

namespace bimetal::parallel::shard {

void Exchange::wait() {
  std::exchange(work_, {}).wait();
  if (!target_.defined()) return;
  const torch::NoGradGuard no_grad;
  std::exchange(target_, {}).copy_(std::exchange(host_, {}));
}

Exchange gather_parts(comm::Group& group, const torch::Tensor& own, const torch::Tensor& flat,
                      const std::vector<std::size_t>& counts, Deadline deadline) {
  const bool here = flat.is_cpu();
  if (here && own.is_cpu() && own.scalar_type() == flat.scalar_type()) {
    return {group.all_gather(tensor_buffer(own), tensor_buffer(flat), counts, deadline), {}, {}};
  }
  const auto whole = here ? flat : torch::empty(flat.sizes(), flat.options().device(torch::kCPU));
  // The part is kept alive by its copy in `whole`, once the call has begun; so it is put there
  // first where it is not the caller's, or of another type.
  const torch::NoGradGuard no_grad;
  const auto begin = std::accumulate(counts.begin(), counts.begin() + group.rank(), std::size_t{0});
  const auto place = whole.narrow(0, static_cast<std::int64_t>(begin), own.numel());
  place.copy_(own);
  auto work = group.all_gather(tensor_buffer(place), tensor_buffer(whole), counts, deadline);
  if (here) return {std::move(work), {}, {}};
  return {std::move(work), whole, flat};
}

Exchange reduce_parts(comm::Group& group, const torch::Tensor& flat, const torch::Tensor& own,
                      const std::vector<std::size_t>& counts, Deadline deadline) {
  if (flat.is_cpu()) {
    return {group.reduce_scatter(tensor_buffer(flat), tensor_buffer(own), counts,
                                 comm::ReduceOp::sum, deadline),
            {},
            {}};
  }
  const auto whole = flat.to(torch::kCPU);
  const auto begin = std::accumulate(counts.begin(), counts.begin() + group.rank(), std::size_t{0});
  const auto part = whole.narrow(0, static_cast<std::int64_t>(begin), own.numel());
  return {group.reduce_scatter(tensor_buffer(whole), tensor_buffer(part), counts,
                               comm::ReduceOp::sum, deadline),
          part, own};
}

}  // namespace bimetal::parallel::shard
