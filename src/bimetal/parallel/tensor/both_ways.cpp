#include "bimetal/parallel/tensor/both_ways.h"

#include <torch/csrc/api/include/torch/autograd.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <utility>

namespace bimetal::parallel::tensor {
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

}  // namespace bimetal::parallel::tensor
