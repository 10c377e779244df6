#include "bimetal/parallel/data/gradient_hooks.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <memory>
#include <utility>

namespace bimetal::parallel {

GradientHooks::GradientHooks(const std::vector<torch::Tensor>& parameters,
                             std::function<void(std::size_t)> on_ready) {
  using torch::autograd::variable_list;
  hooks_.reserve(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters[i]);
    const auto key =
        accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
            [on_ready, i](const variable_list& outputs, const variable_list& /*inputs*/) {
              on_ready(i);
              return outputs;
            }));
    hooks_.push_back({std::move(accumulator), key});
  }
}

GradientHooks::~GradientHooks() {
  for (const Hook& hook : hooks_) hook.accumulator->del_post_hook(hook.key);
}

}  // namespace bimetal::parallel
