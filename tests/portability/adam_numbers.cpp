// Adam's merged update, as the compiler has made it for this processor, beside the formulas element
// by element in double. Without libtorch or GoogleTest: it runs on processors that this machine has
// not (scripts/portability.sh). Ends with 1 and says where a number is another.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <vector>

#include "bimetal/optim/adam_kernel.h"

namespace {

using bimetal::optim::AdamNumbers;

struct Element {
  double parameter, gradient, mean, square;
};

/// Kingma and Ba, Algorithm 1; Loshchilov and Hutter, Algorithm 2.
Element stepped(Element of, const AdamNumbers& by) {
  double gradient = of.gradient * by.gradient_factor;
  if (by.decoupled) {
    of.parameter -= by.rate * by.weight_decay * of.parameter;
  } else {
    gradient += by.weight_decay * of.parameter;
  }
  of.mean = by.beta1 * of.mean + (1 - by.beta1) * gradient;
  of.square = by.beta2 * of.square + (1 - by.beta2) * gradient * gradient;
  const auto step = static_cast<double>(by.step);
  const double mean = of.mean / (1 - std::pow(by.beta1, step));
  const double square = of.square / (1 - std::pow(by.beta2, step));
  of.parameter -= by.rate * mean / (std::sqrt(square) + by.epsilon);
  return of;
}

/// The nearer of the two neighbours, and of two as near the even one.
std::uint16_t nearest_bfloat16(float value) {
  if (std::isnan(value)) return 0x7fc0;
  const auto below = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  const auto above = static_cast<std::uint16_t>(below + 1);
  const auto distance = [&](std::uint16_t bits) {
    return std::abs(double{std::bit_cast<float>(std::uint32_t{bits} << 16)} - value);
  };
  if (distance(below) == distance(above)) return below % 2 == 0 ? below : above;
  return distance(below) < distance(above) ? below : above;
}

int wrong = 0;

void expect(bool holds, const char* what, std::size_t count, std::size_t at) {
  if (holds) return;
  std::printf("%s of element %zu of %zu is another\n", what, at, count);
  ++wrong;
}

template <typename Real>
bool near(Real found, double expected) {
  const double scale = std::max(0.1, std::abs(expected));  // of what may cancel
  return std::abs(found - expected) <= 16 * std::numeric_limits<Real>::epsilon() * scale;
}

/// As many as fill vectors of any width, and what is left over.
template <typename Real>
void check(std::size_t count, const AdamNumbers& by) {
  std::vector<Real> parameters, gradients, means, squares;
  std::vector<Element> expected;
  for (std::size_t i = 0; i < count; ++i) {
    const auto number = static_cast<double>(i);
    parameters.push_back(static_cast<Real>(std::sin(number)));
    gradients.push_back(static_cast<Real>(std::cos(3 * number)));
    means.push_back(static_cast<Real>(0.1 * std::sin(5 * number)));
    squares.push_back(static_cast<Real>(0.01 + 0.01 * std::cos(number)));
    expected.push_back(stepped({parameters[i], gradients[i], means[i], squares[i]}, by));
  }
  for (const bool copies : {false, true}) {
    auto now = parameters, mean = means, square = squares;
    std::vector<std::uint16_t> halves(count);
    bimetal::optim::adam_pass({.parameters = now.data(),
                               .gradients = gradients.data(),
                               .means = mean.data(),
                               .squares = square.data(),
                               .bfloat16s = copies ? halves.data() : nullptr,
                               .count = count},
                              by);
    for (std::size_t i = 0; i < count; ++i) {
      expect(near(now[i], expected[i].parameter), "the parameter", count, i);
      expect(near(mean[i], expected[i].mean), "exp_avg", count, i);
      expect(near(square[i], expected[i].square), "exp_avg_sq", count, i);
      if (!copies) continue;
      expect(halves[i] == nearest_bfloat16(static_cast<float>(now[i])), "the copy", count, i);
    }
  }
}

void check_nan() {
  float parameter = std::numeric_limits<float>::quiet_NaN(), gradient = 1, mean = 0, square = 0;
  std::uint16_t half = 0;
  bimetal::optim::adam_pass({.parameters = &parameter,
                             .gradients = &gradient,
                             .means = &mean,
                             .squares = &square,
                             .bfloat16s = &half,
                             .count = 1},
                            AdamNumbers());
  expect(half == 0x7fc0, "the copy of no number", 1, 0);
}

}  // namespace

int main() {
  for (const std::size_t count : {0, 1, 3, 4, 15, 16, 17, 64, 1001}) {
    for (const bool decoupled : {true, false}) {
      for (const std::int64_t step : {1, 10}) {
        const AdamNumbers by{.rate = 1e-2,
                             .weight_decay = 0.1,
                             .decoupled = decoupled,
                             .step = step,
                             .gradient_factor = 0.5};
        check<float>(count, by);
        check<double>(count, by);
      }
    }
  }
  check_nan();
  std::printf("%d numbers are wrong\n", wrong);
  return wrong == 0 ? 0 : 1;
}
