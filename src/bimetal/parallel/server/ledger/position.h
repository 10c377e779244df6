#pragma once
// How far a job has come: which samples its parameters have learnt from. The copy of server 0 needs
// it to take over. docs/parameter_server.md, "When a server dies".

#include <cstdint>
#include <vector>

namespace bimetal::parallel::server {

/// Samples of one epoch, in the sampler's order.
struct SampleRun {
  std::int64_t epoch = 0;
  std::int64_t offset = 0;
  std::int64_t count = 0;

  friend bool operator==(const SampleRun&, const SampleRun&) = default;
};

struct Position {
  std::int64_t steps_done = 0;
  std::int64_t epoch = 0;
  std::int64_t offset = 0;         ///< within the epoch's order: all before it have been used
  std::vector<SampleRun> visited;  ///< async: used although some before them have not been

  friend bool operator==(const Position&, const Position&) = default;
};

}  // namespace bimetal::parallel::server
