#pragma once
// How long a gradient may be.

namespace bimetal::optim {

/// 0: no such limit.
struct GradientLimits {
  double norm = 0;   ///< of all gradients as one vector (Pascanu et al., ICML 2013, Algorithm 1)
  double value = 0;  ///< of each element, as an absolute value
};

}  // namespace bimetal::optim
