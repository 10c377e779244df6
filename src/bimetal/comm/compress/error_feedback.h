#pragma once
// Element-wise steps of error feedback (Seide et al., "1-Bit Stochastic Gradient Descent", 2014;
// Karimireddy et al., ICML 2019): the loss of one compression is added to the data of the next.

#include <span>

namespace bimetal::comm {

/// values[i] += residual[i].
void add(std::span<float> values, std::span<const float> residual);

/// residual[i] = weight × (wanted[i] - sent[i]), or 0 where that is not finite: a NaN that has got
/// across must not come back in the next step.
void remember_lost(std::span<const float> wanted, std::span<const float> sent, float weight,
                   std::span<float> residual);

/// Replaces what is not finite by 0.
void forget_not_finite(std::span<float> values);

/// velocity[i] = momentum × velocity[i] + gradient[i]; residual[i] += velocity[i]. (Momentum
/// correction: Lin et al., ICLR 2018, §3.2.)
void add_with_momentum(std::span<const float> gradient, float momentum, std::span<float> velocity,
                       std::span<float> residual);

}  // namespace bimetal::comm
