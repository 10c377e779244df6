#pragma once
// Devices as the balancer sees them.

#include <cstdint>

#include "bimetal/balance/shares.h"

namespace bimetal::balance::test {

/// Takes `alpha` + `beta` · samples seconds, and at most `cap` of these.
inline Device device(double alpha, double beta, std::int64_t cap = kNoCap) {
  return {CostModel(alpha, beta), cap};
}

}  // namespace bimetal::balance::test
