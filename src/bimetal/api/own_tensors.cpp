#include "bimetal/api/own_tensors.h"

#include <c10/util/StringUtil.h>
#include <fmt/format.h>

#include "bimetal/base/error.h"
#include "bimetal/parallel/shard/flat_parameters.h"

namespace bimetal::api {

void require_values(const task::ModelState& model) {
  for (const auto& [name, tensor] : model.parameters) {
    if (!tensor.has_storage() || !parallel::shard::is_hollow(tensor)) continue;
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("'{}' has no values here any more: another rank of an earlier Pipeline "
                            "or DataParallel has them; make the model anew",
                            name));
  }
}

OwnTensors::OwnTensors(const char* whose, const task::ModelState& model,
                       const std::vector<torch::Tensor>& optimized)
    : whose_(whose) {
  task::require_distinct_names(model);  // which nobody would want to hear of at the end alone
  for (const auto& tensor : optimized) known_.insert(tensor.unsafeGetTensorImpl());
  for (const auto& named : model.parameters) {
    (named.tensor.requires_grad() ? trained_ : frozen_).push_back(named);
  }
  left_.resize(trained_.size());
}

void OwnTensors::require_usable(const torch::optim::Optimizer& optimizer) const {
  require_as_they_were();
  require_all_of(optimizer);
  require_untouched();
}

// Frozen on one rank alone, a tensor would be moved by the gradient of the others' samples; and of
// one that is trained only now no rank sends its gradient.
void OwnTensors::require_as_they_were() const {
  const auto require = [this](const std::vector<task::NamedTensor>& tensors, bool trained,
                              const char* what) {
    for (const auto& [name, tensor] : tensors) {
      if (tensor.requires_grad() == trained) continue;
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("'{0}' was {1} after {2} was made of the model: make another {2} of "
                              "it, on all ranks, and go on with that",
                              name, what, whose_));
    }
  };
  require(trained_, true, "frozen (requires_grad)");
  require(frozen_, false, "set to be trained (requires_grad)");
}

void OwnTensors::require_all_of(const torch::optim::Optimizer& optimizer) const {
  bool trains = false;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& tensor : group.params()) {
      if (!known_.contains(tensor.unsafeGetTensorImpl())) {
        throw Error(ErrorCode::InvalidArgument,
                    fmt::format("the optimizer has a tensor of shape {0} that is not the model's, "
                                "whose gradients no rank would send: make it of {1}::parameters(), "
                                "after {1} was made",
                                c10::str(tensor.sizes()), whose_));
      }
      trains |= tensor.requires_grad();
    }
  }
  if (trains || trained_.empty()) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("the optimizer has none of the model's trained tensors: make it of "
                          "{0}::parameters(), after {0} was made",
                          whose_));
}

void OwnTensors::require_untouched() const {
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    const auto& gradient = trained_[i].tensor.grad();
    const auto& left = left_[i];
    if (!gradient.defined()) continue;
    const bool same = left && left->version == gradient._version() &&
                      left->gradient._unsafe_get_target() == gradient.unsafeGetTensorImpl();
    if (same) continue;
    if (gradient.count_nonzero().item<std::int64_t>() == 0) continue;  // Optimizer::zero_grad
    throw Error(
        ErrorCode::InvalidArgument,
        fmt::format("'{}' has a gradient that {}::step has not made and would drop: add that "
                    "loss to the one that step() gets, and leave its backward() to step()",
                    trained_[i].name, whose_));
  }
}

void OwnTensors::note_gradients() {
  for (std::size_t i = 0; i < trained_.size(); ++i) {
    const auto& gradient = trained_[i].tensor.grad();
    left_[i].reset();
    if (gradient.defined()) left_[i].emplace(gradient.getIntrusivePtr(), gradient._version());
  }
}

}  // namespace bimetal::api
