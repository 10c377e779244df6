#include "bimetal/parallel/tensor/tensor_store.h"

#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/parallel/data/broadcast.h"
#include "bimetal/parallel/tensor_buffer.h"

namespace bimetal::parallel::tensor {
namespace {

constexpr std::size_t kWholeMessageBytes = std::size_t{8} << 20;

/// Those that are trained, of each type by itself.
std::map<torch::ScalarType, std::vector<torch::Tensor>> trained_by_type(
    const std::vector<torch::Tensor>& parameters) {
  std::map<torch::ScalarType, std::vector<torch::Tensor>> types;
  for (const auto& parameter : parameters) {
    if (parameter.requires_grad()) types[parameter.scalar_type()].push_back(parameter);
  }
  return types;
}

}  // namespace

TensorStore::TensorStore(std::shared_ptr<ParameterStore> replicas,
                         std::shared_ptr<const TensorModel> model)
    : replicas_(std::move(replicas)),
      model_(std::move(model)),
      group_(model_->ranks()->group()),
      figures_(group_) {}

void TensorStore::begin_step(std::int64_t weight, double scale) {
  seconds_before_ = model_->ranks()->seconds();
  summing_seconds_ = 0;
  replicas_->begin_step(weight, scale);
}

void TensorStore::backward(const torch::Tensor& loss, std::int64_t part) {
  replicas_->backward(loss, part);
}

void TensorStore::backward_last(const torch::Tensor& loss, std::int64_t part) {
  replicas_->backward_last(loss, part);
}

void TensorStore::run_pass(const std::function<void()>& backward, bool last) {
  replicas_->run_pass(backward, last);
}

// Not through the units' sums: these may have been given up.
void TensorStore::finish_step() {
  replicas_->finish_step();
  if (model_->between() == Between::whole) return;
  const Stopwatch watch;
  const torch::NoGradGuard no_grad;
  for (auto& [type, parameters] : trained_by_type(model_->kept_whole())) sum_gradients(parameters);
  summing_seconds_ = watch.seconds();
}

/// Each rank's are of its own positions. Small, but for those of learnt positions: one message.
void TensorStore::sum_gradients(std::vector<torch::Tensor>& parameters) {
  std::vector<torch::Tensor> flat;
  for (auto& parameter : parameters) {
    auto& gradient = parameter.mutable_grad();
    if (!gradient.defined()) gradient = torch::zeros_like(parameter);
    flat.push_back(gradient.flatten());
  }
  const auto all = torch::cat(flat).to(torch::kCPU);
  group_
      .all_reduce(tensor_buffer(all), comm::ReduceOp::sum,
                  Deadline::after(model_->ranks()->timeout()))
      .wait();
  std::int64_t at = 0;
  for (auto& parameter : parameters) {
    auto& gradient = parameter.mutable_grad();
    gradient.copy_(all.narrow(0, at, gradient.numel()).view(gradient.sizes()));
    at += gradient.numel();
  }
}

void TensorStore::after_update() {
  replicas_->after_update();
  broadcast_tensors(model_->kept_whole(), 0, group_, kWholeMessageBytes,
                    model_->ranks()->timeout());
  replicas_->whole_changed();
}

bool TensorStore::counts(const torch::Tensor& parameter) const {
  if (!replicas_->counts(parameter)) return false;
  if (group_.rank() == 0) return true;
  const auto tensor = replicas_->whole_of(parameter);
  return std::ranges::none_of(model_->kept_whole(),
                              [&](const torch::Tensor& whole) { return whole.is_same(tensor); });
}

progress::RankFigures TensorStore::as_one(const progress::RankFigures& mine) {
  figures_.start(mine, Deadline::after(model_->ranks()->timeout()));
  const auto all = figures_.wait();
  auto one = all.front();  // of the samples, which are the same
  double squares = 0, working = 0;
  one.bytes_sent = 0;
  for (const auto& rank : all) {
    squares += rank.gradient_norm * rank.gradient_norm;
    one.compute_seconds = std::max(one.compute_seconds, rank.compute_seconds);
    working = std::max(working, rank.compute_seconds - rank.sum_seconds);
    one.fit = std::max(one.fit, rank.fit);
    one.wishes |= rank.wishes;
    one.communicate_seconds = std::max(one.communicate_seconds, rank.communicate_seconds);
    one.wait_seconds = std::max(one.wait_seconds, rank.wait_seconds);
    one.bytes_sent += rank.bytes_sent;
  }
  one.sum_seconds = one.compute_seconds - working;
  one.gradient_norm = std::sqrt(squares);
  return one;
}

void TensorStore::broadcast_buffers(int root) {
  replicas_->broadcast_buffers(root);
}

std::vector<comm::NamedValues> TensorStore::error_feedback() {
  return replicas_->error_feedback();
}

bool TensorStore::set_error_feedback(std::vector<comm::NamedValues> state, std::int64_t steps) {
  return replicas_->set_error_feedback(std::move(state), steps);
}

double TensorStore::wait_seconds() const noexcept {
  return replicas_->wait_seconds();
}

double TensorStore::sum_seconds() const noexcept {
  return model_->ranks()->seconds() - seconds_before_;
}

double TensorStore::communicate_seconds() const noexcept {
  return replicas_->communicate_seconds() + sum_seconds() + summing_seconds_;
}

}  // namespace bimetal::parallel::tensor
