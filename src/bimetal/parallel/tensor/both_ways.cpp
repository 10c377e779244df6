#include "bimetal/parallel/tensor/both_ways.h"

#include <torch/csrc/api/include/torch/autograd.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <utility>

namespace bimetal::parallel::tensor {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Keeps the way back until backward.
struct WayBack final : torch::CustomClassHolder {
  explicit WayBack(Exchanged b) : back(std::move(b)) {}
  Exchanged back;
};

class BothWays : public torch::autograd::Function<BothWays> {
 public:
  static torch::Tensor forward(AutogradContext* context, const torch::Tensor& x,
                               const Exchanged& there, const Exchanged& back) {
    context->saved_data["back"] = c10::IValue::make_capsule(c10::make_intrusive<WayBack>(back));
    return there(x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto kept =
        c10::static_intrusive_pointer_cast<WayBack>(context->saved_data["back"].toCapsule());
    const torch::NoGradGuard no_grad;
    return {kept->back(gradients.front()), {}, {}};
  }
};

}  // namespace

torch::Tensor both_ways(const torch::Tensor& x, Exchanged there, Exchanged back) {
  return BothWays::apply(x, there, back);
}

}  // namespace bimetal::parallel::tensor
