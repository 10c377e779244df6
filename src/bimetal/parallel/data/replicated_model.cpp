#include "bimetal/parallel/data/replicated_model.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/parallel/data/broadcast.h"
#include "bimetal/parallel/data/gradient_reducer.h"
#include "bimetal/parallel/data/parameter_check.h"
#include "bimetal/parallel/tensor_buffer.h"

namespace bimetal::parallel {

namespace {

// The parameters whose gradients travel. Refuses what the reducer cannot handle, by name.
std::vector<torch::Tensor> trained_parameters(const std::vector<task::NamedTensor>& parameters) {
  std::vector<torch::Tensor> trained;
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.requires_grad()) continue;
    if (!comm_dtype(tensor.scalar_type())) {
      throw Error(ErrorCode::Unsupported,
                  fmt::format("gradients of parameter '{}' have type {}, which cannot be summed "
                              "over ranks; use float32, float64, float16 or bfloat16",
                              name, c10::toString(tensor.scalar_type())));
    }
    if (!trained.empty() && tensor.device() != trained.front().device()) {
      throw Error(ErrorCode::Unsupported,
                  fmt::format("parameter '{}' is on {} while others are on {}; data parallelism "
                              "keeps a rank's module on one device",
                              name, tensor.device().str(), trained.front().device().str()));
    }
    trained.push_back(tensor);
  }
  return trained;
}

ReducerOptions reducer_options(const ReplicatedModelOptions& options) {
  return {.first_bucket_bytes = options.first_bucket_bytes,
          .bucket_bytes = options.bucket_bytes,
          .timeout = options.timeout,
          .compression = options.compression,
          .island = options.island};
}

}  // namespace

struct ReplicatedModel::Impl {
  /// Where a rank stands within a step.
  enum class Phase {
    idle,      ///< outside of a step
    open,      ///< begin_step to backward_last
    reducing,  ///< backward_last to finish_step
  };

  Impl(comm::Group g, const ReplicatedModelOptions& o) : group(std::move(g)), options(o) {}

  void run_backward(const torch::Tensor& loss, std::int64_t part) const;
  void check_backward(const torch::Tensor& loss, std::int64_t part) const;

  comm::Group group;
  ReplicatedModelOptions options;
  std::vector<torch::Tensor> buffers;
  std::unique_ptr<GradientReducer> reducer;
  Phase phase = Phase::idle;
  std::int64_t weight = 0;
  double scale = 1;
  std::int64_t done = 0;  ///< of it
};

ReplicatedModel::ReplicatedModel(const task::ModelState& model, comm::Group group,
                                 ReplicatedModelOptions options)
    : impl_(std::make_unique<Impl>(std::move(group), options)) {
  if (!impl_->group) throw Error(ErrorCode::InvalidArgument, "data parallelism needs a group");
  check_same_on_all_ranks(model, impl_->group, options.timeout);
  impl_->buffers = task::tensors_of(model.buffers);
  impl_->reducer = std::make_unique<GradientReducer>(trained_parameters(model.parameters),
                                                     impl_->group, reducer_options(options));
  broadcast_tensors(task::tensors_of(model.parameters), 0, impl_->group, options.bucket_bytes,
                    options.timeout);
  broadcast_buffers();
}

ReplicatedModel::~ReplicatedModel() = default;

void ReplicatedModel::begin_step(std::int64_t weight, double scale) {
  if (weight <= 0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("the weight of a step's samples must be positive, not {}", weight));
  }
  if (impl_->phase != Impl::Phase::idle) {
    throw Error(ErrorCode::InvalidArgument,
                "begin_step: the last step has not been ended with finish_step");
  }
  impl_->reducer->begin();
  impl_->phase = Impl::Phase::open;
  impl_->weight = weight;
  impl_->scale = scale;
  impl_->done = 0;
}

void ReplicatedModel::backward(const torch::Tensor& loss, std::int64_t part) {
  impl_->check_backward(loss, part);
  impl_->done += part;
  impl_->run_backward(loss, part);
}

void ReplicatedModel::backward_last(const torch::Tensor& loss, std::int64_t part) {
  impl_->check_backward(loss, part);
  impl_->done += part;
  impl_->phase = Impl::Phase::reducing;
  impl_->reducer->reduce_during([&] { impl_->run_backward(loss, part); });
}

void ReplicatedModel::finish_step() {
  if (impl_->phase == Impl::Phase::idle) {
    throw Error(ErrorCode::InvalidArgument, "finish_step: no step was begun with begin_step");
  }
  impl_->phase = Impl::Phase::idle;
  impl_->reducer->finish();
}

std::vector<comm::NamedValues> ReplicatedModel::error_feedback() {
  return impl_->reducer->error_feedback();
}

bool ReplicatedModel::set_error_feedback(std::vector<comm::NamedValues> state, std::int64_t steps) {
  return impl_->reducer->set_error_feedback(std::move(state), steps);
}

void ReplicatedModel::broadcast_buffers(int root) {
  broadcast_tensors(impl_->buffers, root, impl_->group, impl_->options.bucket_bytes,
                    impl_->options.timeout);
}

double ReplicatedModel::wait_seconds() const noexcept {
  return impl_->reducer->wait_seconds();
}

double ReplicatedModel::communicate_seconds() const noexcept {
  return impl_->reducer->communicate_seconds();
}

const comm::Group& ReplicatedModel::group() const noexcept {
  return impl_->group;
}

void ReplicatedModel::Impl::check_backward(const torch::Tensor& loss, std::int64_t part) const {
  if (phase != Phase::open) {
    throw Error(ErrorCode::InvalidArgument,
                phase == Phase::idle ? "backward: no step was begun with begin_step"
                                     : "backward: this step's backward_last has already been run");
  }
  if (!loss.defined() || loss.numel() != 1) {
    throw Error(ErrorCode::InvalidArgument, "backward: the loss must be a single number");
  }
  if (part <= 0 || part > weight - done) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("backward: a part of {} after {} in a global batch of weight {}", part,
                            done, weight));
  }
}

// part/W enters as the gradient of the loss itself: backward is linear in it, so this is the
// weighted loss's gradient without another pass over anything.
void ReplicatedModel::Impl::run_backward(const torch::Tensor& loss, std::int64_t part) const {
  const double counts = scale * static_cast<double>(part) / static_cast<double>(weight);
  loss.backward(torch::full_like(loss, counts));
}

}  // namespace bimetal::parallel
