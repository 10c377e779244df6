#pragma once
// The age of gradients in steps when they change the parameters: as measured, and as expected of a
// worker's next ones. Pure. Not thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

namespace bimetal::parallel::server {

/// No worker is given parameters predicted for later than that: gradients do not stay alike for so
/// long.
inline constexpr double kFurthestAhead = 4;

class GradientAge {
 public:
  /// `version`: of the parameters now.
  explicit GradientAge(std::uint64_t version) : version_(version), steps_{{version, 0}} {}

  /// Gradients of `worker`, computed with parameters of version `used`, are being applied.
  void observe(int worker, std::uint64_t used);
  /// The parameters have changed by `part` of a step, and are one version newer.
  void add_update(double part);

  /// For a worker's next gradients, in steps, 0 … kFurthestAhead: the median of the newest ages. 0
  /// while nothing is known.
  double expected(int worker) const;

 private:
  struct Ages {
    std::array<double, 5> newest{};  ///< each in the place of the oldest
    std::size_t count = 0;           ///< so many have there been
  };

  std::uint64_t version_;
  std::map<std::uint64_t, double> steps_;  ///< by version: how far training was
  std::map<int, Ages> ages_;
};

}  // namespace bimetal::parallel::server
