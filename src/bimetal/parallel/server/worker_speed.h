#pragma once
// How long a worker takes for a lease: its compute time, fitted as in all-reduce mode
// (balance/cost_model.h), and the exchange with the servers, which hardly depends on the number of
// samples. Kept apart, since a worker that is given few samples would look slow by the exchange
// alone, and be given even fewer. Pure, like the models that it is made of.

#include <array>
#include <cstddef>
#include <cstdint>

#include "bimetal/balance/cost_model.h"

namespace bimetal::parallel::server {

class WorkerSpeed {
 public:
  WorkerSpeed() = default;  ///< nothing is known
  /// `probed`: of its compute time, as it has measured by itself.
  explicit WorkerSpeed(const balance::CostModel& probed) : probed_(probed), compute_(probed) {}

  /// A lease of `samples` took `seconds`, of which it computed for `compute_seconds`.
  void observe(std::int64_t samples, double seconds, double compute_seconds);

  /// A step went by without it. After many of them it is judged by its probe again: what made it
  /// too slow may be over.
  void pass_over();

  bool known() const noexcept { return compute_.known(); }
  /// Whether it has finished a lease, so that its exchange is known, too.
  bool exchanged() const noexcept { return exchanges_ > 0; }
  /// Expected for a lease; 0 while nothing is known.
  double seconds(std::int64_t samples) const noexcept;
  /// Samples per second in leases of that many; 0 while nothing is known.
  double rate(std::int64_t samples) const noexcept;
  /// Both together, as one model. known() only.
  balance::CostModel cost() const;

 private:
  balance::CostModel probed_, compute_;
  double exchange() const;

  std::array<double, 5> newest_{};  ///< exchanges, each in the place of the oldest
  std::size_t exchanges_ = 0;       ///< so many have there been
  int steps_idle_ = 0;
};

}  // namespace bimetal::parallel::server
