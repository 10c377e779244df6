#include "bimetal/parallel/tensor/tensor_sums.h"

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

TensorSums::TensorSums(std::shared_ptr<ParameterStore> replicas,
                       std::shared_ptr<const TensorModel> model)
    : replicas_(std::move(replicas)),
      model_(std::move(model)),
      group_(model_->ranks()->group()),
      figures_(group_) {}

void TensorSums::begin_step() {
  seconds_before_ = model_->ranks()->seconds();
  summing_seconds_ = 0;
}

// Not through the units' sums: these may have been given up.
void TensorSums::after_replicas() {
  if (model_->between() == Between::whole) return;
  const Stopwatch watch;
  const torch::NoGradGuard no_grad;
  for (auto& [type, parameters] : trained_by_type(model_->kept_whole())) sum_gradients(parameters);
  summing_seconds_ = watch.seconds();
}

/// Each rank's are of its own positions. Small, but for those of learnt positions: one message.
void TensorSums::sum_gradients(std::vector<torch::Tensor>& parameters) {
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

void TensorSums::after_update() {
  broadcast_tensors(model_->kept_whole(), 0, group_, kWholeMessageBytes,
                    model_->ranks()->timeout());
  replicas_->whole_changed();
}

bool TensorSums::counts(const torch::Tensor& whole) const {
  return group_.rank() == 0 ||
         std::ranges::none_of(model_->kept_whole(),
                              [&](const torch::Tensor& kept) { return kept.is_same(whole); });
}

progress::RankFigures TensorSums::as_one(const progress::RankFigures& mine) {
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

double TensorSums::unit_seconds() const noexcept {
  return model_->ranks()->seconds() - seconds_before_;
}

double TensorSums::communicate_seconds() const noexcept {
  return unit_seconds() + summing_seconds_;
}

}  // namespace bimetal::parallel::tensor
