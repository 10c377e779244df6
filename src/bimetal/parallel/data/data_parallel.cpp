#include "bimetal/parallel/data/data_parallel.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/parallel/data/broadcast.h"
#include "bimetal/parallel/data/gradient_reducer.h"
#include "bimetal/parallel/data/module_state.h"
#include "bimetal/parallel/data/parameter_check.h"
#include "bimetal/parallel/tensor_buffer.h"

namespace bimetal::parallel {

namespace {

// The parameters whose gradients travel. Refuses what the reducer cannot handle, by name.
std::vector<torch::Tensor> trained_parameters(const std::vector<NamedTensor>& parameters) {
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

ReducerOptions reducer_options(const DataParallelOptions& options) {
  return {.first_bucket_bytes = options.first_bucket_bytes,
          .bucket_bytes = options.bucket_bytes,
          .timeout = options.timeout,
          .compression = options.compression,
          .island = options.island};
}

}  // namespace

struct DataParallel::Impl {
  /// Where a rank stands within a step.
  enum class Phase {
    idle,      ///< outside of a step
    open,      ///< begin_step to backward_last
    reducing,  ///< backward_last to finish_step
  };

  Impl(std::shared_ptr<torch::nn::Module> m, comm::Group g, const DataParallelOptions& o)
      : module(std::move(m)), group(std::move(g)), options(o) {}

  void run_backward(const torch::Tensor& mean_loss, std::int64_t samples) const;
  void check_backward(const torch::Tensor& mean_loss, std::int64_t samples) const;

  std::shared_ptr<torch::nn::Module> module;
  comm::Group group;
  DataParallelOptions options;
  std::vector<torch::Tensor> buffers;
  std::unique_ptr<GradientReducer> reducer;
  Phase phase = Phase::idle;
  std::int64_t global_batch = 0;
  std::int64_t samples_done = 0;
};

DataParallel::DataParallel(std::shared_ptr<torch::nn::Module> module, comm::Group group,
                           DataParallelOptions options)
    : impl_(std::make_unique<Impl>(std::move(module), std::move(group), options)) {
  if (!impl_->module || !impl_->group) {
    throw Error(ErrorCode::InvalidArgument, "data parallelism needs a module and a group");
  }
  const ModuleState state = module_state(*impl_->module);
  check_same_on_all_ranks(state, impl_->group, options.timeout);
  impl_->buffers = tensors_of(state.buffers);
  impl_->reducer = std::make_unique<GradientReducer>(trained_parameters(state.parameters),
                                                     impl_->group, reducer_options(options));
  broadcast_tensors(tensors_of(state.parameters), 0, impl_->group, options.bucket_bytes,
                    options.timeout);
  broadcast_buffers();
}

DataParallel::~DataParallel() = default;

void DataParallel::begin_step(std::int64_t global_batch) {
  if (global_batch <= 0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("the global batch must be positive, not {}", global_batch));
  }
  if (impl_->phase != Impl::Phase::idle) {
    throw Error(ErrorCode::InvalidArgument,
                "begin_step: the last step has not been ended with finish_step");
  }
  impl_->reducer->begin();
  impl_->phase = Impl::Phase::open;
  impl_->global_batch = global_batch;
  impl_->samples_done = 0;
}

void DataParallel::backward(const torch::Tensor& mean_loss, std::int64_t samples) {
  impl_->check_backward(mean_loss, samples);
  impl_->samples_done += samples;
  impl_->run_backward(mean_loss, samples);
}

void DataParallel::backward_last(const torch::Tensor& mean_loss, std::int64_t samples) {
  impl_->check_backward(mean_loss, samples);
  impl_->samples_done += samples;
  impl_->phase = Impl::Phase::reducing;
  impl_->reducer->reduce_during([&] { impl_->run_backward(mean_loss, samples); });
}

void DataParallel::finish_step() {
  if (impl_->phase == Impl::Phase::idle) {
    throw Error(ErrorCode::InvalidArgument, "finish_step: no step was begun with begin_step");
  }
  impl_->phase = Impl::Phase::idle;
  impl_->reducer->finish();
}

std::vector<comm::NamedValues> DataParallel::error_feedback() {
  return impl_->reducer->error_feedback();
}

bool DataParallel::set_error_feedback(std::vector<comm::NamedValues> state, std::int64_t steps) {
  return impl_->reducer->set_error_feedback(std::move(state), steps);
}

void DataParallel::broadcast_buffers(int root) {
  broadcast_tensors(impl_->buffers, root, impl_->group, impl_->options.bucket_bytes,
                    impl_->options.timeout);
}

double DataParallel::wait_seconds() const noexcept {
  return impl_->reducer->wait_seconds();
}

double DataParallel::communicate_seconds() const noexcept {
  return impl_->reducer->communicate_seconds();
}

const comm::Group& DataParallel::group() const noexcept {
  return impl_->group;
}

void DataParallel::Impl::check_backward(const torch::Tensor& mean_loss,
                                        std::int64_t samples) const {
  if (phase != Phase::open) {
    throw Error(ErrorCode::InvalidArgument,
                phase == Phase::idle ? "backward: no step was begun with begin_step"
                                     : "backward: this step's backward_last has already been run");
  }
  if (!mean_loss.defined() || mean_loss.numel() != 1) {
    throw Error(ErrorCode::InvalidArgument, "backward: the loss must be a single number");
  }
  if (samples <= 0 || samples > global_batch - samples_done) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("backward: {} samples after {} in a global batch of {}", samples,
                            samples_done, global_batch));
  }
}

// The weight b_i/B enters as the gradient of the loss itself: backward is linear in it, so this is
// the weighted loss's gradient without another pass over anything.
void DataParallel::Impl::run_backward(const torch::Tensor& mean_loss, std::int64_t samples) const {
  const double weight = static_cast<double>(samples) / static_cast<double>(global_batch);
  mean_loss.backward(torch::full_like(mean_loss, weight));
}

}  // namespace bimetal::parallel
