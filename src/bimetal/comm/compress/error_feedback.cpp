#include "bimetal/comm/compress/error_feedback.h"

#include <bit>
#include <cstddef>
#include <cstdint>

#include "bimetal/comm/reduce/half.h"

namespace bimetal::comm {
namespace {

// Without a branch, so that loops vectorise.
float finite_or_zero(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>(choose((bits & 0x7f800000u) == 0x7f800000u, 0u, bits));
}

void add_all(float* __restrict values, const float* __restrict residual, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) values[i] += residual[i];
}

void subtract_all(const float* __restrict wanted, const float* __restrict sent, float weight,
                  float* __restrict residual, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    residual[i] = finite_or_zero(weight * (wanted[i] - sent[i]));
  }
}

void add_momentum(const float* __restrict gradient, float momentum, float* __restrict velocity,
                  float* __restrict residual, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    velocity[i] = momentum * velocity[i] + gradient[i];
    residual[i] += velocity[i];
  }
}

}  // namespace

void add(std::span<float> values, std::span<const float> residual) {
  add_all(values.data(), residual.data(), values.size());
}

void remember_lost(std::span<const float> wanted, std::span<const float> sent, float weight,
                   std::span<float> residual) {
  subtract_all(wanted.data(), sent.data(), weight, residual.data(), residual.size());
}

void forget_not_finite(std::span<float> values) {
  for (float& value : values) value = finite_or_zero(value);
}

void add_with_momentum(std::span<const float> gradient, float momentum, std::span<float> velocity,
                       std::span<float> residual) {
  add_momentum(gradient.data(), momentum, velocity.data(), residual.data(), gradient.size());
}

}  // namespace bimetal::comm
