#pragma once
// A small epoch, workers and a clock for the tests of the ledger.

#include <chrono>
#include <cstdint>
#include <vector>

#include "bimetal/parallel/server/ledger/ledger.h"

namespace bimetal::parallel::server {

inline LedgerOptions small(Consistency consistency, std::int64_t staleness = 0) {
  LedgerOptions options;
  options.consistency = consistency;
  options.staleness = staleness;
  options.dataset_size = 100;
  options.global_batch = 32;
  options.epochs = 2;
  return options;
}

/// The report of a worker that computes so many samples per second; 0: it reports nothing.
inline WorkerSpeed speed(double samples_per_s) {
  return samples_per_s > 0 ? WorkerSpeed({0, 1 / samples_per_s}) : WorkerSpeed();
}

/// With workers of those speeds, numbered from 0.
inline Ledger ledger_of(const LedgerOptions& options, const std::vector<double>& speeds) {
  Ledger ledger(options);
  int worker = 0;
  for (const double own : speeds) ledger.add_worker(worker++, speed(own));
  return ledger;
}

/// Time that the test moves.
struct Clock {
  TimePoint now{};
  TimePoint after(int ms) { return now += std::chrono::milliseconds(ms); }
};

}  // namespace bimetal::parallel::server
