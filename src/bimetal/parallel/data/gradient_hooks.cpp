#include "bimetal/parallel/data/gradient_hooks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <memory>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/parallel/group_room.h"

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

std::vector<task::NamedTensor> trained_parameters(
    const std::vector<task::NamedTensor>& parameters) {
  std::vector<task::NamedTensor> trained;
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.requires_grad()) continue;
    if (!comm_dtype(tensor.scalar_type())) {
      throw Error(ErrorCode::Unsupported,
                  fmt::format("gradients of parameter '{}' have type {}, which cannot be summed "
                              "over ranks; use float32, float64, float16 or bfloat16",
                              name, c10::toString(tensor.scalar_type())));
    }
    if (!trained.empty() && tensor.device() != trained.front().tensor.device()) {
      throw Error(ErrorCode::Unsupported,
                  fmt::format("parameter '{}' is on {} while others are on {}; data parallelism "
                              "keeps a rank's module on one device",
                              name, tensor.device().str(), trained.front().tensor.device().str()));
    }
    trained.push_back({name, tensor});
  }
  return trained;
}

BucketFilling::BucketFilling(std::vector<torch::Tensor> parameters,
                             std::vector<std::vector<std::size_t>> buckets, Take take, Taken taken,
                             std::size_t late)
    : parameters_(std::move(parameters)),
      buckets_(std::move(buckets)),
      places_(parameters_.size()),
      take_(std::move(take)),
      taken_(std::move(taken)),
      late_(late),
      hooks_(parameters_, [this](std::size_t i) { on_gradient(i); }) {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    for (std::size_t slot = 0; slot < buckets_[i].size(); ++slot) {
      places_[buckets_[i][slot]] = {i, slot};
    }
  }
  expect_anew();
}

void BucketFilling::expect_anew() {
  filled_.clear();
  missing_.clear();
  for (const auto& bucket : buckets_) {
    filled_.emplace_back(bucket.size());
    missing_.push_back(bucket.size());
  }
}

void BucketFilling::during(const std::function<void()>& backward) {
  taking_ = true;
  try {
    backward();
  } catch (...) {
    taking_ = false;
    throw;
  }
  taking_ = false;
}

void BucketFilling::on_gradient(std::size_t parameter) {
  if (!taking_) return;
  const std::lock_guard lock(mutex_);
  const auto [bucket, slot] = places_[parameter];
  if (bucket < late_ || bucket >= buckets_.size()) return;
  if (filled_[bucket][slot]) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("parameter {} of shape [{}] received its gradient in two parts of one "
                            "backward pass; run backward without nested backward calls",
                            parameter, fmt::join(parameters_[parameter].sizes(), ", ")));
  }
  fill(bucket, slot);
}

void BucketFilling::complete(std::size_t bucket) {
  const std::lock_guard lock(mutex_);
  for (std::size_t slot = 0; slot < buckets_[bucket].size(); ++slot) {
    if (!filled_[bucket][slot]) fill(bucket, slot);
  }
}

void BucketFilling::fill(std::size_t bucket, std::size_t slot) {
  take_(bucket, slot);
  filled_[bucket][slot] = true;
  --missing_[bucket];
  taken_(bucket);
}

}  // namespace bimetal::parallel
