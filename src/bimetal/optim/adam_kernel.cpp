#include "bimetal/optim/adam_kernel.h"

#include <bit>
#include <cmath>

// The widest vectors of the processor that the program finds itself on. ARM64 has but one width
// that all have, and other compilers get along with x86-64's.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__gnu_linux__)
#define BIMETAL_FOR_EACH_PROCESSOR \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define BIMETAL_FOR_EACH_PROCESSOR
#endif
// A function with a clone for each processor must hold its loop itself.
#define BIMETAL_INLINE inline __attribute__((always_inline))

namespace bimetal::optim {
namespace {

template <typename Real>
struct Coefficients {
  explicit Coefficients(const AdamNumbers& numbers)
      : factor(static_cast<Real>(numbers.gradient_factor)),
        added(static_cast<Real>(numbers.decoupled ? 0 : numbers.weight_decay)),
        kept(static_cast<Real>(numbers.decoupled ? 1 - numbers.rate * numbers.weight_decay : 1)),
        beta1(static_cast<Real>(numbers.beta1)),
        beta2(static_cast<Real>(numbers.beta2)),
        rest1(static_cast<Real>(1 - numbers.beta1)),
        rest2(static_cast<Real>(1 - numbers.beta2)),
        epsilon(static_cast<Real>(numbers.epsilon)) {
    const auto step = static_cast<double>(numbers.step);
    rate = static_cast<Real>(numbers.rate / (1 - std::pow(numbers.beta1, step)));
    unbias2 = static_cast<Real>(1 / std::sqrt(1 - std::pow(numbers.beta2, step)));
  }

  Real factor, added, kept, beta1, beta2, rest1, rest2, epsilon, rate, unbias2;
};

// Without a branch, so that the loop around it vectorises.
BIMETAL_INLINE std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<std::uint16_t>(is_nan ? 0x7fc0u : rounded);
}

template <bool kCopies, typename Real>
BIMETAL_INLINE void run(const AdamElements<Real>& elements, const Coefficients<Real>& by) {
  Real* __restrict parameters = elements.parameters;
  const Real* __restrict gradients = elements.gradients;
  Real* __restrict means = elements.means;
  Real* __restrict squares = elements.squares;
  std::uint16_t* __restrict bfloat16s = elements.bfloat16s;
  const Coefficients<Real> c = by;
  const std::size_t count = elements.count;
  for (std::size_t i = 0; i < count; ++i) {
    const Real old = parameters[i];
    const Real gradient = gradients[i] * c.factor + c.added * old;
    const Real mean = c.beta1 * means[i] + c.rest1 * gradient;
    const Real square = c.beta2 * squares[i] + c.rest2 * gradient * gradient;
    const Real now = c.kept * old - c.rate * mean / (std::sqrt(square) * c.unbias2 + c.epsilon);
    means[i] = mean;
    squares[i] = square;
    parameters[i] = now;
    if constexpr (kCopies) bfloat16s[i] = to_bfloat16(static_cast<float>(now));
  }
}

BIMETAL_FOR_EACH_PROCESSOR
void pass(const AdamElements<float>& elements, const Coefficients<float>& by) {
  run<false>(elements, by);
}
BIMETAL_FOR_EACH_PROCESSOR
void pass(const AdamElements<double>& elements, const Coefficients<double>& by) {
  run<false>(elements, by);
}
BIMETAL_FOR_EACH_PROCESSOR
void copying_pass(const AdamElements<float>& elements, const Coefficients<float>& by) {
  run<true>(elements, by);
}
BIMETAL_FOR_EACH_PROCESSOR
void copying_pass(const AdamElements<double>& elements, const Coefficients<double>& by) {
  run<true>(elements, by);
}

template <typename Real>
void step(const AdamElements<Real>& elements, const AdamNumbers& numbers) {
  const Coefficients<Real> by(numbers);
  if (elements.bfloat16s == nullptr) return pass(elements, by);
  copying_pass(elements, by);
}

}  // namespace

void adam_pass(const AdamElements<float>& elements, const AdamNumbers& numbers) noexcept {
  step(elements, numbers);
}

void adam_pass(const AdamElements<double>& elements, const AdamNumbers& numbers) noexcept {
  step(elements, numbers);
}

}  // namespace bimetal::optim
