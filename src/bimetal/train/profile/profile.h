#pragma once
// The contents of a profile of some steps: docs/profile.md.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "bimetal/progress/observer.h"

namespace bimetal::train {

/// One of libtorch's operations, or a kernel of an accelerator, over all steps and ranks.
struct Operation {
  std::string name;        ///< "aten::addmm"
  std::int64_t calls = 0;  ///< in the profiled steps
  double self_s = 0;       ///< on the CPU, without the operations that it calls
  double total_s = 0;      ///< with them
  double device_s = 0;     ///< on the accelerator
  std::int64_t bytes = 0;  ///< allocated less freed by itself; below 0: it frees others' memory
  bool operator==(const Operation&) const = default;
};

/// Seconds of a rank in one phase.
struct PhaseTime {
  std::string name;    ///< data, forward, backward, wait, update, other; and exchange, beside them
  double seconds = 0;  ///< of all profiled steps
};

/// The ranks' work in some steps.
struct Profile {
  std::int64_t first_step = 0, last_step = 0;        ///< that it is of
  int ranks = 0;                                     ///< profiled
  double seconds = 0;                                ///< of all steps, added up over the ranks
  std::vector<Operation> operations = {};            ///< the most expensive first
  std::vector<PhaseTime> phases = {};                ///< added up over the ranks
  std::vector<std::vector<double>> seconds_of = {};  ///< by rank and phase, as in `phases`
  std::vector<std::vector<progress::StepSpan>> spans = {};  ///< by rank: the last step
  std::vector<double> latency_s = {};  ///< by rank: that of a short message from rank 0, one
                                       ///< way
  std::filesystem::path trace = {};    ///< of all ranks, for chrome://tracing and ui.perfetto.dev
  double clock_error_s = 0;            ///< most that the ranks' clocks may be apart in it
};

/// The profile that is asked for. Rank 0's request counts.
struct ProfileRequest {
  std::int64_t first_step = 0, last_step = 0;     ///< both included, counted from the job's start
  std::filesystem::path trace = {};               ///< file for the trace; empty: none
  std::function<void(const Profile&)> done = {};  ///< called on rank 0
};

}  // namespace bimetal::train
