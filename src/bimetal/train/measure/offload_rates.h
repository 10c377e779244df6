#pragma once
// How fast a run's offloaded states and parameters go to and from their disk, beside the disk's
// rates for a plain copy.

#include <chrono>
#include <optional>

#include "bimetal/comm/group.h"
#include "bimetal/job/job_config.h"
#include "bimetal/optim/offload/state_file.h"
#include "bimetal/progress/observer.h"
#include "bimetal/progress/report.h"
#include "bimetal/train/trained_model.h"

namespace bimetal::train {

/// The rates of one rank's run. Use from one thread.
class OffloadRates {
 public:
  /// If this rank has anything on a disk, and a report will say so, it copies as many bytes there
  /// and back, 256 MiB at most, in about a second. Ranks that share a disk do so at the same time,
  /// as they use it later.
  OffloadRates(const job::JobConfig& job, TrainedModel& trained, progress::Observer& observer);

  /// From here on it counts.
  void start();

  /// Puts every rank's figures into the report, whose workers are the group's ranks. Collective.
  void report(comm::Group group, progress::Report& report, std::chrono::milliseconds timeout) const;

 private:
  std::optional<optim::DiskTraffic> states() const;
  std::optional<optim::DiskTraffic> parameters() const;

  const job::JobConfig& job_;
  TrainedModel& trained_;
  optim::PlainCopy copy_;
  std::optional<optim::DiskTraffic> states_before_, parameters_before_;
};

}  // namespace bimetal::train
