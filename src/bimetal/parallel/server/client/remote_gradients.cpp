#include "bimetal/parallel/server/client/remote_gradients.h"

#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>

#include "bimetal/base/deadline.h"

namespace bimetal::parallel::server {

RemoteGradients::RemoteGradients(Client& client, std::vector<torch::Tensor> parameters)
    : client_(client),
      parameters_(std::move(parameters)),
      pushed_(parameters_.size(), 0),
      hooks_(parameters_, [this](std::size_t parameter) { on_gradient(parameter); }) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    numbers_[parameters_[i].unsafeGetTensorImpl()] = i;
  }
}

void RemoteGradients::clear_gradients() {
  // New memory each time: the last lease's gradients may still be on their way.
  for (auto& parameter : parameters_) parameter.mutable_grad() = torch::Tensor();
}

void RemoteGradients::begin(const Lease& lease) {
  lease_ = lease;
  std::ranges::fill(pushed_, std::uint8_t{0});
  clear_gradients();
  pull_seconds_ = 0;
  client_.start_pull(lease, Client::Values::compressed);
}

void RemoteGradients::wait_for_parameters() {
  const Stopwatch watch;
  version_ = client_.finish_pull();
  pull_seconds_ += watch.seconds();
}

void RemoteGradients::wait_for(const task::Unit& unit) {
  const Stopwatch watch;
  for (const auto& parameter : unit.parameters) {
    client_.wait_for(numbers_.at(parameter.tensor.unsafeGetTensorImpl()));
  }
  pull_seconds_ += watch.seconds();
}

// The weight enters as the gradient of the loss itself, as in parallel::ReplicatedModel.
void RemoteGradients::run_backward(const torch::Tensor& loss, std::int64_t part) const {
  const double counts = static_cast<double>(part) / static_cast<double>(lease_.denominator);
  loss.backward(torch::full_like(loss, counts));
}

void RemoteGradients::backward(const torch::Tensor& loss, std::int64_t part) {
  run_backward(loss, part);
}

void RemoteGradients::backward_last(const torch::Tensor& loss, std::int64_t part) {
  pushing_ = true;
  try {
    run_backward(loss, part);
  } catch (...) {
    pushing_ = false;
    throw;
  }
  pushing_ = false;
}

void RemoteGradients::on_gradient(std::size_t parameter) {
  if (!pushing_) return;
  client_.push(lease_.id, parameter, parameters_[parameter].grad());
  pushed_[parameter] = 1;
}

void RemoteGradients::finish() {
  wait_for_parameters();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& gradient = parameters_[i].grad();
    if (pushed_[i] == 0 && gradient.defined()) client_.push(lease_.id, i, gradient);
  }
  client_.end_push(lease_.id);
}

bool RemoteGradients::start_over() {
  clear_gradients();
  return std::ranges::none_of(pushed_, [](auto pushed) { return pushed != 0; });
}

}  // namespace bimetal::parallel::server
