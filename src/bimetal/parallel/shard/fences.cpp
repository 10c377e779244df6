#include "bimetal/parallel/shard/fences.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/api/include/torch/autograd.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <memory>
#include <utility>

namespace bimetal::parallel::shard {
namespace {

struct Boundary final : torch::CustomClassHolder {
  explicit Boundary(std::function<void()> called) : call(std::move(called)) {}
  std::function<void()> call;
};

/// Identity; its backward calls the boundary.
class Fence : public torch::autograd::Function<Fence> {
 public:
  using Context = torch::autograd::AutogradContext;

  static task::Values forward(Context* context, const c10::intrusive_ptr<Boundary>& boundary,
                              at::TensorList values) {
    context->saved_data["boundary"] = c10::IValue::make_capsule(boundary);
    context->set_materialize_grads(false);
    task::Values same;
    for (const auto& value : values) same.push_back(value.view_as(value));
    return same;
  }

  static task::Values backward(Context* context, const task::Values& gradients) {
    c10::static_intrusive_pointer_cast<Boundary>(context->saved_data["boundary"].toCapsule())
        ->call();
    task::Values all = {torch::Tensor()};  // of the boundary
    all.insert(all.end(), gradients.begin(), gradients.end());
    return all;
  }
};

task::Values pass(const c10::intrusive_ptr<Boundary>& boundary, const task::Values& values) {
  if (values.empty() || !torch::GradMode::is_enabled()) return values;
  return Fence::apply(boundary, at::TensorList(values));
}

}  // namespace

task::Values at_backward(const task::Values& values, std::function<void()> call) {
  return pass(c10::make_intrusive<Boundary>(std::move(call)), values);
}

task::Unit fence(task::Unit unit, UnitBoundaries boundaries) {
  const auto in = c10::make_intrusive<Boundary>(std::move(boundaries.after_backward));
  const auto out = c10::make_intrusive<Boundary>(std::move(boundaries.before_backward));
  unit.forward = [forward = std::move(unit.forward), in, out,
                  before = std::move(boundaries.before_forward),
                  after = std::move(boundaries.after_forward)](const task::Values& inputs) {
    before();
    auto outputs = pass(out, forward(pass(in, inputs)));
    after();
    return outputs;
  };
  return unit;
}

}  // namespace bimetal::parallel::shard
