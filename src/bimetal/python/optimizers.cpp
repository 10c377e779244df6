#include "bimetal/optim/optimizers.h"

#include <torch/csrc/api/include/torch/optim/adam.h>
#include <torch/csrc/api/include/torch/optim/adamw.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bimetal/base/error.h"
#include "bimetal/job/job_config.h"
#include "bimetal/python/bindings.h"

namespace bimetal::python {
namespace {

/// Steps and both moments; nothing before a parameter's first step.
using AdamState = std::optional<std::tuple<std::int64_t, torch::Tensor, torch::Tensor>>;

/// One of this library's optimizers with Adam's state, for programs that have torch's in Python.
class CoreOptimizer {
 public:
  CoreOptimizer(const std::string& kind, std::vector<torch::Tensor> parameters,
                double learning_rate, std::pair<double, double> betas, double epsilon,
                double weight_decay, const std::string& folder)
      : parameters_(std::move(parameters)), adamw_(kind == "adamw") {
    if (!adamw_ && kind != "adam" && kind != "lamb") {
      throw Error(ErrorCode::InvalidArgument,
                  "the optimizer '" + kind + "' is none of adam, adamw and lamb");
    }
    job::JobConfig job;
    job.train.optimizer = kind;
    job.train.learning_rate = learning_rate;
    std::tie(job.train.beta1, job.train.beta2) = betas;
    job.train.epsilon = epsilon;
    job.train.weight_decay = weight_decay;
    if (!folder.empty()) {
      job.zero.offload_optimizer = "disk";
      job.zero.offload_path = folder;
    }
    optimizer_ = kind == "lamb" ? optim::make_optimizer(job.train, parameters_)
                                : optim::make_shard_optimizer(job, parameters_, {});
    set_learning_rate(learning_rate);
  }

  void set_learning_rate(double rate) { optim::set_learning_rate(*optimizer_, rate); }
  void step() { optimizer_->step(); }

  std::vector<AdamState> states() const {
    return adamw_ ? states_as<torch::optim::AdamWParamState>()
                  : states_as<torch::optim::AdamParamState>();
  }
  /// Copies.
  void set_states(const std::vector<AdamState>& states) {
    if (states.size() != parameters_.size()) {
      throw Error(ErrorCode::InvalidArgument,
                  "set_states() needs one, or None, for each parameter");
    }
    if (adamw_) {
      take<torch::optim::AdamWParamState>(states);
    } else {
      take<torch::optim::AdamParamState>(states);
    }
  }

 private:
  template <typename State>
  std::vector<AdamState> states_as() const {
    std::vector<AdamState> states;
    const auto& known = optimizer_->state();
    for (const auto& parameter : parameters_) {
      const auto found = known.find(parameter.unsafeGetTensorImpl());
      if (found == known.end()) {
        states.emplace_back();
        continue;
      }
      const auto& state = static_cast<const State&>(*found->second);
      states.emplace_back(std::tuple(state.step(), state.exp_avg(), state.exp_avg_sq()));
    }
    return states;
  }

  template <typename State>
  void take(const std::vector<AdamState>& states) {
    optimizer_->state().clear();
    for (std::size_t i = 0; i < states.size(); ++i) {
      if (!states[i]) continue;
      const auto& [steps, mean, square] = *states[i];
      const auto& like = parameters_[i];
      auto state = std::make_unique<State>();
      state->step(steps);
      state->exp_avg(mean.detach().to(like.options().requires_grad(false), false, /*copy=*/true));
      state->exp_avg_sq(
          square.detach().to(like.options().requires_grad(false), false, /*copy=*/true));
      optimizer_->state()[like.unsafeGetTensorImpl()] = std::move(state);
    }
  }

  std::vector<torch::Tensor> parameters_;
  bool adamw_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace

void bind_optimizers(Bindings& bindings) {
  Bindings::Class<CoreOptimizer>(bindings, "CoreOptimizer")
      .made_of<const std::string&, std::vector<torch::Tensor>, double, std::pair<double, double>,
               double, double, const std::string&>()
      .method("set_learning_rate", &CoreOptimizer::set_learning_rate, Lock::kept)
      .method("step", &CoreOptimizer::step)
      .method("states", &CoreOptimizer::states, Lock::kept)
      .method("set_states", &CoreOptimizer::set_states, Lock::kept);
}

}  // namespace bimetal::python
