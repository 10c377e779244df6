#include "bimetal/parallel/data/replicated_model.h"

#include <utility>

#include "bimetal/parallel/data/broadcast.h"
#include "bimetal/parallel/data/gradient_reducer.h"
#include "bimetal/parallel/data/trained_parameters.h"

namespace bimetal::parallel {

ReplicatedModel::ReplicatedModel(const task::ModelState& model, comm::Group group,
                                 const ReplicatedModelOptions& options)
    : ParameterStore(model, std::move(group), options.bucket_bytes, options.timeout) {
  const auto trained = task::tensors_of(trained_parameters(model.parameters));
  for (const auto& tensor : trained) trained_.insert(tensor.unsafeGetTensorImpl());
  reducer_ = std::make_unique<GradientReducer>(
      trained, this->group(),
      ReducerOptions{.first_bucket_bytes = options.first_bucket_bytes,
                     .bucket_bytes = options.bucket_bytes,
                     .timeout = options.timeout,
                     .compression = options.compression,
                     .island = options.island});
  broadcast_tensors(task::tensors_of(model.parameters), 0, this->group(), options.bucket_bytes,
                    options.timeout);
}

ReplicatedModel::~ReplicatedModel() = default;

void ReplicatedModel::begin() {
  reducer_->begin();
}

void ReplicatedModel::pass(const std::function<void()>& backward, bool last) {
  if (!last) return backward();
  reducer_->reduce_during(backward ? backward : [] {});
}

void ReplicatedModel::finish(const std::function<void()>& before_sums) {
  before_sums();
  reducer_->finish();
}

TensorFacts ReplicatedModel::facts_of(const torch::Tensor& tensor) const {
  return {.trained = trained_.contains(tensor.unsafeGetTensorImpl()), .whole = tensor};
}

std::vector<comm::NamedValues> ReplicatedModel::error_feedback() {
  return reducer_->error_feedback();
}

bool ReplicatedModel::set_error_feedback(std::vector<comm::NamedValues> state, std::int64_t steps) {
  return reducer_->set_error_feedback(std::move(state), steps);
}

const ExchangeSpan& ReplicatedModel::times() const noexcept {
  return reducer_->times();
}

}  // namespace bimetal::parallel
