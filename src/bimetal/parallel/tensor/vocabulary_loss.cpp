#include "bimetal/parallel/tensor/vocabulary_loss.h"

#include <torch/csrc/api/include/torch/autograd.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include "bimetal/base/error.h"

namespace bimetal::parallel::tensor {
namespace {

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
    if (torch::GradMode::is_enabled()) {  // create_graph: what is saved has no graph
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

torch::Tensor vocabulary_loss_sum(const torch::Tensor& logits, const torch::Tensor& targets,
                                  task::Part here, std::int64_t ignored, const GroupRanks& ranks) {
  const bool low =
      logits.scalar_type() == torch::kBFloat16 || logits.scalar_type() == torch::kFloat16;
  return VocabularyLoss::apply(low ? logits.to(torch::kFloat32) : logits, targets, here, ignored,
                               &ranks);
}

}  // namespace bimetal::parallel::tensor
