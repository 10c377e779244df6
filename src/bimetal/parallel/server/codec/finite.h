#pragma once
// Whether all numbers are finite: one pass, without a temporary.

#include <span>

namespace bimetal::parallel::server {

/// No NaN and no infinity among them.
bool all_finite(std::span<const float> values) noexcept;
bool all_finite(std::span<const double> values) noexcept;

}  // namespace bimetal::parallel::server
