#include "bimetal/python_host/hosted_optimizer.h"

#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

namespace bimetal::python_host {

namespace py = pybind11;

namespace {

using Fields = std::map<std::string, torch::Tensor>;

}  // namespace

HostedOptimizer::HostedOptimizer(const py::object& hosted, std::vector<torch::Tensor> parameters)
    : ForeignOptimizer(parameters, py::cast<std::string>(hosted.attr("kind"))),
      hosted_(hosted),
      parameters_(std::move(parameters)) {}

torch::Tensor HostedOptimizer::step(LossClosure closure) {
  torch::Tensor loss;
  if (closure) loss = closure();
  take_restored();
  in_python("the optimizer's step has failed", [&] { (*hosted_).attr("step")(); });
  show_state();
  return loss;
}

void HostedOptimizer::take_restored() {
  const auto first = state().find(parameters_.front().unsafeGetTensorImpl());
  if (first == state().end() || first->second.get() == shown_) return;
  in_python("the optimizer cannot take the checkpoint's state", [&] {
    py::list states;
    for (const auto& parameter : parameters_) {
      const auto found = state().find(parameter.unsafeGetTensorImpl());
      states.append(found == state().end()
                        ? Fields()
                        : static_cast<const optim::ForeignState&>(*found->second).tensors);
    }
    (*hosted_).attr("restore")(states);
  });
}

void HostedOptimizer::show_state() {
  const auto states = in_python("the optimizer's state cannot be kept", [&] {
    return py::cast<std::vector<Fields>>((*hosted_).attr("states")());
  });
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    auto shown = std::make_unique<optim::ForeignState>();
    shown->tensors = states[i];
    if (i == 0) shown_ = shown.get();
    state()[parameters_[i].unsafeGetTensorImpl()] = std::move(shown);
  }
}

}  // namespace bimetal::python_host
