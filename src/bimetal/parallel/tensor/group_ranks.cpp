#include "bimetal/parallel/tensor/group_ranks.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/autograd.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <numeric>
#include <utility>

#include "bimetal/balance/shares.h"
#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/comm/exchange.h"
#include "bimetal/device/staging.h"
#include "bimetal/parallel/group_room.h"

namespace bimetal::parallel::tensor {
namespace {

torch::Tensor summed(const torch::Tensor& x, const GroupRanks& ranks) {
  auto sum = x.clone(at::MemoryFormat::Contiguous);
  ranks.all_reduce(sum, comm::ReduceOp::sum);
  return sum;
}

torch::Tensor as_it_is(const torch::Tensor& x) {
  return x;
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class VocabularyLoss : public torch::autograd::Function<VocabularyLoss> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& logits,
                               const torch::Tensor& targets, task::Part here, std::int64_t ignored,
                               const GroupRanks* ranks) {
    const auto places = targets - here.first;
    const auto elsewhere = places.lt(0).logical_or_(places.ge(here.count));
    const auto columns = places.masked_fill(elsewhere, 0).unsqueeze(1);
    const auto counted = targets.ne(ignored);

    auto most = logits.amax(1);
    ranks->all_reduce(most, comm::ReduceOp::max);
    auto powers = (logits - most.unsqueeze(1)).exp_();
    const auto chosen = (logits.gather(1, columns).squeeze(1) - most).masked_fill_(elsewhere, 0);
    auto sums = torch::stack({powers.sum(1), chosen});
    ranks->all_reduce(sums, comm::ReduceOp::sum);

    powers.div_(sums[0].unsqueeze(1));
    context->save_for_backward({powers, columns, counted, elsewhere});
    return (sums[0].log() - sums[1]).masked_fill_(counted.logical_not(), 0).sum();
  }

  // softmax - 1 at the target, where there is one.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (torch::GradMode::is_enabled()) {  // create_graph: the saved tensor has no graph
      throw Error(ErrorCode::Unsupported,
                  "the loss of logits that are in parts over the ranks has no second derivative: "
                  "compute it of whole logits, without labels, or leave the output layer out of "
                  "the plan");
    }
    const auto saved = context->get_saved_variables();
    const auto &softmax = saved[0], &columns = saved[1], &counted = saved[2], &elsewhere = saved[3];
    const auto factor = counted.to(softmax.scalar_type()) * gradients.front();
    auto gradient = softmax * factor.unsqueeze(1);
    gradient.scatter_add_(1, columns, factor.neg().masked_fill_(elsewhere, 0).unsqueeze(1));
    return {gradient, {}, {}, {}, {}};
  }
};

}  // namespace

std::shared_ptr<const GroupRanks> GroupRanks::make(comm::Group group, std::vector<double> weights,
                                                   std::chrono::milliseconds timeout,
                                                   c10d::FormIsland form_island) {
  if (!group || weights.size() != static_cast<std::size_t>(group.size())) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("{} weights of tensor ranks for a group of {}: give one for each",
                            weights.size(), group ? group.size() : 0));
  }
  // For its errors.
  balance::whole_parts(group.size(), weights);
  return std::shared_ptr<const GroupRanks>(
      new GroupRanks(std::move(group), std::move(weights), timeout, std::move(form_island)));
}

GroupRanks::GroupRanks(comm::Group group, std::vector<double> weights,
                       std::chrono::milliseconds timeout, c10d::FormIsland form_island)
    : group_(std::move(group)),
      form_island_(std::move(form_island)),
      weights_(std::move(weights)),
      timeout_(timeout) {
  renew();
}

void GroupRanks::give_up(const std::string& why) const {
  sums_.group.abort(why);
  if (sums_.island) sums_.island->give_up(why);
}

void GroupRanks::renew() const {
  sums_ = {};
  sums_.group = comm::group_of_its_own(group_);
  auto island = form_island_ ? form_island_(group_) : nullptr;
  if (island && island->in_order()) sums_.island = std::move(island);
}

task::Part GroupRanks::part(std::int64_t pieces) const {
  return part(pieces, group_.rank());
}

task::Part GroupRanks::part(std::int64_t pieces, int rank) const {
  const auto counts = balance::whole_parts(pieces, weights_);
  return {std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0}),
          counts[static_cast<std::size_t>(rank)]};
}

// f of Megatron's figure 3: nothing forwards, a sum backwards.
torch::Tensor GroupRanks::shared(const torch::Tensor& x) const {
  return both_ways(x, as_it_is, [self = shared_from_this()](const torch::Tensor& gradient) {
    return summed(gradient, *self);
  });
}

// g of the same figure: a sum forwards, nothing backwards.
torch::Tensor GroupRanks::sum(const torch::Tensor& x) const {
  return both_ways(
      x, [self = shared_from_this()](const torch::Tensor& part) { return summed(part, *self); },
      as_it_is);
}

torch::Tensor GroupRanks::cross_entropy_sum(const torch::Tensor& logits,
                                            const torch::Tensor& targets, std::int64_t vocabulary,
                                            std::int64_t ignored) const {
  return vocabulary_loss_sum(logits, targets, part(vocabulary), ignored, *this);
}

void GroupRanks::all_reduce(const torch::Tensor& tensor, comm::ReduceOp op) const {
  const torch::NoGradGuard no_grad;
  if (sums_.island) {
    const auto computed = device::mark_current_stream(tensor.device());
    return timed([&](Deadline deadline) {
      computed.wait(deadline);
      sums_.island->all_reduce(tensor, comm_dtype_of(tensor), deadline, op).wait();
    });
  }
  const auto host = tensor.is_cpu() ? tensor : tensor.to(torch::kCPU);
  timed(
      [&](Deadline deadline) { sums_.group.all_reduce(tensor_buffer(host), op, deadline).wait(); });
  if (!tensor.is_cpu()) tensor.copy_(host);
}

void GroupRanks::gather(const torch::Tensor& own, const torch::Tensor& whole,
                        const std::vector<std::size_t>& counts) const {
  timed([&](Deadline deadline) {
    shard::gather_parts(sums_, own.flatten(), whole, counts).begin(deadline).wait();
  });
}

void GroupRanks::reduce_scatter(const torch::Tensor& whole, const torch::Tensor& own,
                                const std::vector<std::size_t>& counts) const {
  timed([&](Deadline deadline) {
    shard::reduce_parts(sums_, whole, own.view({-1}), counts).begin(deadline).wait();
  });
}

void GroupRanks::timed(const std::function<void(Deadline deadline)>& exchange) const {
  const Stopwatch watch;
  exchange(Deadline::after(timeout_));
  seconds_.fetch_add(watch.seconds(), std::memory_order_relaxed);
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Keeps both ways until backward, which may have a graph of its own.
struct Ways final : torch::CustomClassHolder {
  Ways(Exchanged t, Exchanged b) : there(std::move(t)), back(std::move(b)) {}
  Exchanged there, back;
};

class BothWays : public torch::autograd::Function<BothWays> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x,
                               const Exchanged& there, const Exchanged& back) {
    context->saved_data["back"] = c10::IValue::make_capsule(c10::make_intrusive<Ways>(there, back));
    return there(x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto kept =
        c10::static_intrusive_pointer_cast<Ways>(context->saved_data["back"].toCapsule());
    return {BothWays::apply(gradients.front(), kept->back, kept->there), {}, {}};
  }
};

}  // namespace

torch::Tensor both_ways(const torch::Tensor& x, Exchanged there, Exchanged back) {
  return BothWays::apply(x, there, back);
}

torch::Tensor vocabulary_loss_sum(const torch::Tensor& logits, const torch::Tensor& targets,
                                  task::Part here, std::int64_t ignored, const GroupRanks& ranks) {
  const bool low =
      logits.scalar_type() == torch::kBFloat16 || logits.scalar_type() == torch::kFloat16;
  return VocabularyLoss::apply(low ? logits.to(torch::kFloat32) : logits, targets, here, ignored,
                               &ranks);
}

}  // namespace bimetal::parallel::tensor
