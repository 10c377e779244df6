#include "bimetal/parallel/tensor/sequence_ranks.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "bimetal/balance/shares.h"
#include "bimetal/base/error.h"
#include "bimetal/parallel/group_room.h"
#include "bimetal/parallel/tensor/group_ranks.h"

namespace bimetal::parallel::tensor {
namespace {

/// Elements by rank of `x`, if counts are of its positions.
std::vector<std::size_t> elements_of(const torch::Tensor& x,
                                     const std::vector<std::int64_t>& counts) {
  std::int64_t of_position = 1;
  for (std::int64_t dim = 0; dim < x.dim(); ++dim) of_position *= dim == 1 ? 1 : x.size(dim);
  std::vector<std::size_t> elements;
  for (const auto count : counts) elements.push_back(static_cast<std::size_t>(count * of_position));
  return elements;
}

/// Data that ranks exchange is in order of ranks: `flat`, with the elements of `whole`. Gives each
/// rank's places in both.
void by_rank(const torch::Tensor& flat, const torch::Tensor& whole,
             const std::vector<std::int64_t>& counts,
             const std::function<void(torch::Tensor in_flat, torch::Tensor in_whole)>& copy) {
  std::int64_t element = 0, position = 0;
  for (const auto count : counts) {
    const auto in_whole = whole.narrow(1, position, count);
    copy(flat.narrow(0, element, in_whole.numel()).view(in_whole.sizes()), in_whole);
    element += in_whole.numel();
    position += count;
  }
}

std::vector<std::int64_t> sizes_with(const torch::Tensor& x, std::int64_t positions) {
  auto sizes = x.sizes().vec();
  sizes[1] = positions;
  return sizes;
}

void require_positions(const torch::Tensor& x, std::int64_t positions) {
  if (x.dim() > 1 && x.size(1) == positions) return;
  throw Error(
      ErrorCode::InvalidArgument,
      fmt::format("mesh.sequence_parallel: a unit has {} positions in the second dimension of what "
                  "tensor ranks share, where {} are expected: its model keeps sequences elsewhere",
                  x.dim() > 1 ? x.size(1) : 0, positions));
}

}  // namespace

std::vector<std::int64_t> positions_by_rank(std::int64_t length, std::span<const double> weights) {
  const auto ranks = static_cast<std::int64_t>(weights.size());
  if (length >= ranks) return balance::whole_parts(length, weights);
  std::vector<std::int64_t> counts(weights.size(), 0);
  std::fill_n(counts.begin(), std::max<std::int64_t>(length, 0), 1);
  return counts;
}

SequenceRanks::SequenceRanks(std::shared_ptr<const GroupRanks> ranks, std::int64_t length)
    : ranks_(std::move(ranks)), counts_(positions_by_rank(length, ranks_->weights())) {}

std::optional<task::Part> SequenceRanks::positions() const {
  const auto here = counts_.begin() + ranks_->group().rank();
  return task::Part{std::accumulate(counts_.begin(), here, std::int64_t{0}), *here};
}

torch::Tensor SequenceRanks::shared(const torch::Tensor& x) const {
  const auto self = shared_from_this();
  return both_ways(
      x, [self](const torch::Tensor& part) { return self->gathered(part); },
      [self](const torch::Tensor& gradient) { return self->sum_here(gradient); });
}

torch::Tensor SequenceRanks::sum(const torch::Tensor& x) const {
  const auto self = shared_from_this();
  return both_ways(
      x, [self](const torch::Tensor& whole) { return self->sum_here(whole); },
      [self](const torch::Tensor& gradient) { return self->gathered(gradient); });
}

torch::Tensor SequenceRanks::gathered(const torch::Tensor& x) const {
  const torch::NoGradGuard no_grad;
  require_positions(x, positions()->count);
  const auto all = std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
  auto whole = torch::empty(sizes_with(x, all), x.options());
  // With one sample, the data is already in its final order.
  const auto flat = whole.size(0) == 1 ? whole.flatten() : torch::empty_like(whole).flatten();
  ranks_->gather(x.contiguous(), flat, elements_of(x, counts_));
  if (whole.size(0) != 1) {
    by_rank(flat, whole, counts_, [](const auto& arrived, auto place) { place.copy_(arrived); });
  }
  return whole;
}

torch::Tensor SequenceRanks::sum_here(const torch::Tensor& x) const {
  const torch::NoGradGuard no_grad;
  require_positions(x, std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0}));
  const auto flat = torch::empty({x.numel()}, x.options());  // scratch of the sum
  by_rank(flat, x, counts_, [](auto place, const auto& part) { place.copy_(part); });
  auto here = torch::empty(sizes_with(x, positions()->count), x.options());
  ranks_->reduce_scatter(flat, here, elements_of(x, counts_));
  return here;
}

task::Values with_length(task::Values values, std::int64_t length) {
  values.push_back(torch::empty({length, 0}, torch::kInt64));
  return values;
}

std::int64_t take_length(task::Values& values) {
  const auto& last = values.back();
  if (last.dim() != 2 || last.size(1) != 0) return values.front().size(1);
  const auto length = last.size(0);
  values.pop_back();
  return length;
}

}  // namespace bimetal::parallel::tensor
