#include "bimetal/train/gradient_stages.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "bimetal/base/error.h"

namespace bimetal::train {
namespace {

/// Steps in a row that may be skipped at a scale that does not fall any more.
constexpr std::int64_t kMostStuck = 10;
/// Overflows without growth in between of which so many are worth a word: a scale of 65536 has then
/// become 256.
constexpr std::int64_t kManyFalls = 8;

double norm_of(std::span<const progress::RankFigures> ranks, Norms norms) {
  if (norms == Norms::OfWhole) return ranks.front().gradient_norm;
  double squares = 0;
  for (const auto& rank : ranks) squares += rank.gradient_norm * rank.gradient_norm;
  return std::sqrt(squares);
}

}  // namespace

GradientStages::GradientStages(const UpdateOptions& options, Norms norms)
    : limits_(options.limits), norms_(norms) {
  if (options.scaler) scaler_.emplace(*options.scaler);
}

double GradientStages::inspect(const std::vector<torch::Tensor>& gradients,
                               const std::vector<torch::Tensor>& counted) {
  const auto seen = look(gradients, counted);
  return seen.defined() ? seen.item<double>() : 0.0;
}

torch::Tensor GradientStages::look(const std::vector<torch::Tensor>& gradients,
                                   const std::vector<torch::Tensor>& counted) {
  factor_ = 1;
  if (scaler_ && factors_ == Factors::Deferred && limits_.value == 0) {
    // Finite exactly where they are: a float32 holds any sum of squares of what float16 computes.
    factor_ = 1 / scaler_->scale();
    const auto norm = optim::norm_where_they_are(counted);
    return (norm.is_mps() ? norm : norm.to(torch::kFloat64)) * factor_;
  }
  const bool scaled = scaler_ && !gradients.empty();
  return look_with(gradients, counted,
                   scaled ? inverse_scale(gradients.front().device()) : torch::Tensor());
}

/// float32: Metal has no float64.
torch::Tensor GradientStages::inverse_scale(const torch::Device& device) const {
  return torch::full({}, scaler_->scale(), torch::dtype(torch::kFloat32).device(device))
      .reciprocal_();
}

/// `inverse`: that of the scale, [], if the scale is to be taken out.
torch::Tensor GradientStages::look_with(const std::vector<torch::Tensor>& gradients,
                                        const std::vector<torch::Tensor>& counted,
                                        const torch::Tensor& inverse) {
  const torch::NoGradGuard no_grad;
  torch::Tensor found;  // above 0 if any was not finite
  if (inverse.defined()) {
    found = torch::zeros_like(inverse);
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse);
  }
  if (limits_.value > 0) optim::clip_values(gradients, limits_.value);
  const bool limited = limits_.norm > 0;
  if (!found.defined()) return limited ? optim::norm_where_they_are(counted) : torch::Tensor();
  auto norm = limited ? optim::norm_where_they_are(counted).to(found.device())
                      : torch::zeros({}, found.options());
  return norm.masked_fill(found > 0, std::numeric_limits<double>::quiet_NaN());
}

torch::Tensor GradientStages::scale_there(const torch::Device& device) {
  if (!scaler_) return {};
  if (!there_) there_.emplace(*scaler_, device);
  return there_->scale();
}

GradientStages::There GradientStages::decide_there(const std::vector<torch::Tensor>& gradients,
                                                   const std::vector<torch::Tensor>& counted) {
  const torch::NoGradGuard no_grad;
  There there{
      look_with(gradients, counted, scaler_ ? there_->scale().reciprocal() : torch::Tensor()), {}};
  if (limits_.norm > 0) optim::clip_norm_there(gradients, there.norm, limits_.norm);
  if (scaler_) {
    // Less itself it is 0 exactly where it is finite.
    there.skipped = (there.norm - there.norm).ne(0).to(torch::kFloat32);
    there_->update(there.skipped);
  }
  return there;
}

bool GradientStages::decide(std::int64_t step, std::span<const progress::RankFigures> ranks,
                            const std::vector<torch::Tensor>& gradients) {
  if (!needs_agreement()) return true;
  const bool finite = learn(step, ranks, /*made=*/false);
  there_.reset();
  if (finite && limits_.norm > 0) {
    const double norm = norm_of(ranks, norms_);
    if (factors_ == Factors::Deferred) {
      factor_ *= optim::clip_factor(norm, limits_.norm);
    } else {
      optim::clip_norm(gradients, norm, limits_.norm);
    }
  }
  return finite;
}

bool GradientStages::learn(std::int64_t step, std::span<const progress::RankFigures> ranks,
                           bool made) {
  const bool finite = std::ranges::all_of(
      ranks, [](const auto& rank) { return std::isfinite(rank.gradient_norm); });
  if (scaler_) {
    scaler_->update(!finite);
    if (!finite) require_way_out(step);
  } else if (!finite) {
    throw Error(
        ErrorCode::NotFinite,
        fmt::format("step {}: the gradients are not finite (NaN or infinity), so {}; a lower "
                    "learning rate or a look at the data may help. The last checkpoint is kept",
                    step, made ? "what they have updated is dropped" : "nothing was updated"));
  }
  return finite;
}

std::optional<std::string> GradientStages::notice() const {
  if (!scaler_ || scaler_->falls() == 0 || scaler_->falls() % kManyFalls != 0) return std::nullopt;
  return fmt::format(
      "the loss scale keeps falling: {} overflows of float16 without growth in between, and it is "
      "{} now; train.clip_value, a lower learning rate or train.precision = \"bfloat16\" may help",
      scaler_->falls(), scaler_->scale());
}

void GradientStages::require_way_out(std::int64_t step) const {
  if (scaler_->stuck() < kMostStuck) return;
  throw Error(
      ErrorCode::NotFinite,
      fmt::format(
          "step {}: the gradients of {} steps in a row were not finite at the loss scale {}, "
          "which gets no smaller; take train.precision = \"bfloat16\", a lower learning "
          "rate{}. The last checkpoint is kept",
          step, kMostStuck, scaler_->scale(),
          scaler_->scale() > 1 ? " or train.loss_scale = 0" : " or a look at the data"));
}

}  // namespace bimetal::train
