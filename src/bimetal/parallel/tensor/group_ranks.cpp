#include "bimetal/parallel/tensor/group_ranks.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <numeric>
#include <utility>

#include "bimetal/balance/whole_parts.h"
#include "bimetal/base/error.h"
#include "bimetal/base/stopwatch.h"
#include "bimetal/parallel/tensor/vocabulary_loss.h"
#include "bimetal/parallel/tensor_buffer.h"

namespace bimetal::parallel::tensor {
namespace {

using torch::autograd::AutogradContext;

/// Keeps the ranks for backward.
struct KeptRanks final : torch::CustomClassHolder {
  explicit KeptRanks(std::shared_ptr<const GroupRanks> r) : ranks(std::move(r)) {}
  std::shared_ptr<const GroupRanks> ranks;
};

torch::Tensor summed(const torch::Tensor& x, const GroupRanks& ranks) {
  auto sum = x.clone(at::MemoryFormat::Contiguous);
  ranks.all_reduce(sum, comm::ReduceOp::sum);
  return sum;
}

/// f of Megatron's figure 3: nothing forwards, a sum backwards.
class Share : public torch::autograd::Function<Share> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x,
                               const std::shared_ptr<const GroupRanks>& ranks) {
    context->saved_data["ranks"] = c10::IValue::make_capsule(c10::make_intrusive<KeptRanks>(ranks));
    return x;
  }
  static torch::autograd::variable_list backward(AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto kept =
        c10::static_intrusive_pointer_cast<KeptRanks>(context->saved_data["ranks"].toCapsule());
    return {summed(gradients.front(), *kept->ranks), {}};
  }
};

/// g of the same figure: a sum forwards, nothing backwards.
class Sum : public torch::autograd::Function<Sum> {
 public:
  static torch::Tensor forward(AutogradContext* /*context*/, const torch::Tensor& x,
                               const std::shared_ptr<const GroupRanks>& ranks) {
    return summed(x, *ranks);
  }
  static torch::autograd::variable_list backward(AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients.front(), {}};
  }
};

}  // namespace

std::shared_ptr<const GroupRanks> GroupRanks::make(comm::Group group, std::vector<double> weights,
                                                   std::chrono::milliseconds timeout) {
  if (!group || weights.size() != static_cast<std::size_t>(group.size())) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} weights of tensor ranks for a group of {}: give one for each",
                            weights.size(), group ? group.size() : 0));
  }
  // For its errors.
  balance::whole_parts(group.size(), weights);
  return std::shared_ptr<const GroupRanks>(
      new GroupRanks(std::move(group), std::move(weights), timeout));
}

GroupRanks::GroupRanks(comm::Group group, std::vector<double> weights,
                       std::chrono::milliseconds timeout)
    : group_(std::move(group)), weights_(std::move(weights)), timeout_(timeout) {
  renew();
}

void GroupRanks::give_up(const std::string& why) const {
  sums_.abort(why);
}

void GroupRanks::renew() const {
  std::vector<int> everyone(static_cast<std::size_t>(group_.size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  sums_ = comm::Group(group_).subgroup(everyone);
}

task::Part GroupRanks::part(std::int64_t pieces) const {
  return part(pieces, group_.rank());
}

task::Part GroupRanks::part(std::int64_t pieces, int rank) const {
  const auto counts = balance::whole_parts(pieces, weights_);
  return {std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0}),
          counts[static_cast<std::size_t>(rank)]};
}

torch::Tensor GroupRanks::shared(const torch::Tensor& x) const {
  return Share::apply(x, shared_from_this());
}

torch::Tensor GroupRanks::sum(const torch::Tensor& x) const {
  return Sum::apply(x, shared_from_this());
}

torch::Tensor GroupRanks::cross_entropy_sum(const torch::Tensor& logits,
                                            const torch::Tensor& targets, std::int64_t vocabulary,
                                            std::int64_t ignored) const {
  return vocabulary_loss_sum(logits, targets, part(vocabulary), ignored, *this);
}

void GroupRanks::all_reduce(const torch::Tensor& tensor, comm::ReduceOp op) const {
  const Stopwatch watch;
  const torch::NoGradGuard no_grad;
  const auto host = tensor.is_cpu() ? tensor : tensor.to(torch::kCPU);
  sums_.all_reduce(tensor_buffer(host), op, Deadline::after(timeout_)).wait();
  if (!tensor.is_cpu()) tensor.copy_(host);
  seconds_.fetch_add(watch.seconds(), std::memory_order_relaxed);
}

}  // namespace bimetal::parallel::tensor
