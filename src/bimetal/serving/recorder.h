#pragma once
// Counts what a server does. Thread-safe.

#include <array>
#include <chrono>
#include <cstddef>
#include <mutex>

#include "bimetal/serving/message.h"

namespace bimetal::serving {

class Recorder {
 public:
  void answered(std::int64_t samples, std::chrono::duration<double> latency);
  void computed_batch();
  void refused();
  void set_clients(std::size_t clients);
  Figures figures() const;

 private:
  mutable std::mutex mutex_;
  Figures counts_;
  std::array<double, 1000> latencies_{};  ///< a ring of the last ones
};

}  // namespace bimetal::serving
