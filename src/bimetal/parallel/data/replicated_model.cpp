#include "bimetal/parallel/data/replicated_model.h"

#include <fmt/format.h>

#include <unordered_set>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/parallel/data/broadcast.h"
#include "bimetal/parallel/data/gradient_reducer.h"
#include "bimetal/parallel/data/parameter_check.h"
#include "bimetal/parallel/data/trained_parameters.h"
#include "bimetal/parallel/step_passes.h"

namespace bimetal::parallel {

namespace {

ReducerOptions reducer_options(const ReplicatedModelOptions& options) {
  return {.first_bucket_bytes = options.first_bucket_bytes,
          .bucket_bytes = options.bucket_bytes,
          .timeout = options.timeout,
          .compression = options.compression,
          .island = options.island};
}

}  // namespace

struct ReplicatedModel::Impl {
  Impl(comm::Group g, const ReplicatedModelOptions& o) : group(std::move(g)), options(o) {}

  comm::Group group;
  ReplicatedModelOptions options;
  std::vector<torch::Tensor> buffers;
  std::unordered_set<const void*> trained;
  std::unique_ptr<GradientReducer> reducer;
  StepPasses passes;
};

ReplicatedModel::ReplicatedModel(const task::ModelState& model, comm::Group group,
                                 ReplicatedModelOptions options)
    : impl_(std::make_unique<Impl>(std::move(group), options)) {
  if (!impl_->group) throw Error(ErrorCode::InvalidArgument, "data parallelism needs a group");
  check_same_on_all_ranks(model, impl_->group, options.timeout);
  impl_->buffers = task::tensors_of(model.buffers);
  const auto trained = task::tensors_of(trained_parameters(model.parameters));
  for (const auto& tensor : trained) impl_->trained.insert(tensor.unsafeGetTensorImpl());
  impl_->reducer =
      std::make_unique<GradientReducer>(trained, impl_->group, reducer_options(options));
  broadcast_tensors(task::tensors_of(model.parameters), 0, impl_->group, options.bucket_bytes,
                    options.timeout);
  ReplicatedModel::broadcast_buffers(0);
}

ReplicatedModel::~ReplicatedModel() = default;

void ReplicatedModel::begin_step(std::int64_t weight, double scale) {
  impl_->passes.begin(weight, scale);
  impl_->reducer->begin();
}

void ReplicatedModel::backward(const torch::Tensor& loss, std::int64_t part) {
  impl_->passes.add(loss, part, false);
  impl_->passes.run_backward(loss, part);
}

void ReplicatedModel::backward_last(const torch::Tensor& loss, std::int64_t part) {
  impl_->passes.add(loss, part, true);
  impl_->reducer->reduce_during([&] { impl_->passes.run_backward(loss, part); });
}

void ReplicatedModel::run_pass(const std::function<void()>& backward, bool last) {
  impl_->passes.add(last);
  if (!last) return backward();
  impl_->reducer->reduce_during(backward ? backward : [] {});
}

double ReplicatedModel::loss_factor() const {
  return impl_->passes.factor();
}

void ReplicatedModel::finish_step() {
  impl_->passes.finish();
  impl_->reducer->finish();
}

bool ReplicatedModel::trains(const torch::Tensor& parameter) const {
  return impl_->trained.contains(parameter.unsafeGetTensorImpl());
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

}  // namespace bimetal::parallel
