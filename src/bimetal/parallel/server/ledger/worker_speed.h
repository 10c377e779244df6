#pragma once
// The time of a worker's lease: its compute time, fitted as in all-reduce mode
// (balance/cost_model.h), and the exchange with the servers, which hardly depends on the number of
// samples. They are kept apart, because a worker with few samples would look slow by the exchange
// alone, and would get even fewer. Pure, like the models that it is made of.

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

  /// A lease of `samples` took `seconds`, of which it computed for `compute_seconds`. `ahead`: it
  /// was granted before the lease before it had ended; `seconds` are those since that end.
  void observe(std::int64_t samples, double seconds, double compute_seconds, bool ahead = false);

  /// A step went by without it. After many of them it is judged by its probe again: what made it
  /// too slow may be over.
  void pass_over();

  bool known() const noexcept { return compute_.known(); }
  /// Whether it has finished a lease, so that its exchange is known, too.
  bool exchanged() const noexcept { return alone_.count + ahead_.count > 0; }
  /// Expected for a lease of its newest kind, or one granted `ahead` or not; 0 while nothing is
  /// known.
  double seconds(std::int64_t samples) const noexcept { return seconds(samples, newest_ahead_); }
  double seconds(std::int64_t samples, bool ahead) const noexcept;
  /// Samples per second in leases of that many; 0 while nothing is known.
  double rate(std::int64_t samples) const noexcept;
  /// Both together, as one model. known() only.
  balance::CostModel cost() const;

 private:
  struct Exchanges {
    std::array<double, 5> newest{};  ///< each in the place of the oldest
    std::size_t count = 0;           ///< so many have there been
    void add(double seconds) { newest[count++ % newest.size()] = seconds; }
    double median() const;
  };
  double exchange(bool ahead) const;

  balance::CostModel probed_, compute_;
  Exchanges alone_, ahead_;
  bool newest_ahead_ = false;
  int steps_idle_ = 0;
};

}  // namespace bimetal::parallel::server
