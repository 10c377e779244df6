#include "bimetal/job/deepspeed.h"

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bimetal/job/job_config.h"
#include "bimetal/optim/optimizers.h"
#include "bimetal/precision/loss_scaler.h"
#include "bimetal/python/bindings.h"

namespace bimetal::python {
namespace {

using ScalerState = std::tuple<double, std::int64_t, std::int64_t, std::int64_t>;

class DeepSpeedConfig {
 public:
  DeepSpeedConfig(const std::string& text, const std::string& origin, int ranks,
                  double learning_rate) {
    job_.train.learning_rate = learning_rate;
    loop_ = job::apply_deepspeed(text, origin, ranks, job_,
                                 [this](const std::string& notice) { notices_.push_back(notice); });
    if (job_.train.precision == "float16") {
      scaler_.emplace(precision::scaler_options(job_.train));
    }
  }

  const job::JobConfig& job() const { return job_; }
  const job::DeepSpeedLoop& loop() const { return loop_; }
  const std::vector<std::string>& notices() const { return notices_; }

  /// For a schedule that falls for as long as the job is.
  void set_total_steps(std::int64_t steps) { job_.train.decay_steps = steps; }
  double learning_rate(std::int64_t step) const {
    return optim::learning_rate_at(job_.train, step, job_.train.decay_steps);
  }

  double loss_scale() const { return scaler_ ? scaler_->scale() : 1.0; }
  void update_loss_scale(bool overflow) {
    if (scaler_) scaler_->update(overflow);
  }
  ScalerState loss_scale_state() const {
    const auto state = scaler_ ? scaler_->state() : precision::LossScalerState();
    return {state.scale, state.growth_steps, state.skipped, state.tolerated};
  }
  void restore_loss_scale(const ScalerState& state) {
    const auto [scale, growth_steps, skipped, tolerated] = state;
    if (scaler_) scaler_->restore({scale, growth_steps, skipped, tolerated});
  }

 private:
  job::JobConfig job_;
  job::DeepSpeedLoop loop_;
  std::vector<std::string> notices_;
  std::optional<precision::LossScaler> scaler_;
};

}  // namespace

void bind_deepspeed(Bindings& bindings) {
  using Config = DeepSpeedConfig;
  Bindings::Class<Config>(bindings, "DeepSpeedConfig")
      .made_of<const std::string&, const std::string&, int, double>()
      .property("job", [](Config& config) { return to_json(config.job()); })
      .property("notices", &Config::notices)
      .property("optimizer", [](Config& config) { return config.loop().optimizer; })
      .property("scheduler", [](Config& config) { return config.loop().scheduler; })
      .property("micro_batch", [](Config& config) { return config.loop().micro_batch; })
      .property("accumulation", [](Config& config) { return config.loop().accumulation; })
      .property("zero_level", [](Config& config) { return config.job().zero.level; })
      .method("set_total_steps", &Config::set_total_steps, Lock::kept)
      .method("learning_rate", &Config::learning_rate, Lock::kept)
      .property("loss_scale", &Config::loss_scale)
      .method("update_loss_scale", &Config::update_loss_scale, Lock::kept)
      .property("loss_scale_state", &Config::loss_scale_state)
      .method("restore_loss_scale", &Config::restore_loss_scale, Lock::kept);
}

}  // namespace bimetal::python
