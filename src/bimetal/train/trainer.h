#pragma once
// One rank's training run, from job to report: data → balanced batches → gradients → fabric → step
// → checkpoint.

#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "bimetal/comm/group.h"
#include "bimetal/data/transfer/file_transfer.h"
#include "bimetal/job/job_config.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/progress/observer.h"
#include "bimetal/progress/report.h"
#include "bimetal/train/profile/profile.h"

namespace bimetal::train {

/// Those who are left when a rank is lost: a group of theirs, in their order.
struct Left {
  comm::Group group;
  int lost = -1;  ///< its number among all
};

struct TrainerOptions {
  job::WorkerSpec worker;
  int local_rank = 0;
  int local_world_size = 1;
  std::string host_name;
  std::optional<std::filesystem::path> resume;
  /// Polled between steps; true asks for a checkpoint and an orderly end on every rank.
  std::function<bool()> stop_requested;
  /// Polled while data is read, fetched or sent; true ends the run there, on every rank.
  std::function<bool()> interrupt_requested = {};
  /// For zero.copies = 2: called by every rank that has seen one lost. Throws where nobody else, or
  /// more than one, is missing.
  std::function<Left()> meet_again = {};
  data::Fetch fetch = {};                      ///< for data at a URL; empty: that is Unsupported
  std::optional<ProfileRequest> profile = {};  ///< rank 0's counts
};

/// Runs `job` as this group's rank and returns the report (complete on every rank; of a run that
/// was interrupted before its first step, little more than that). Collective. Errors: those of
/// share_dataset, NotFinite naming step and rank (the last checkpoint stays), OutOfMemory, and the
/// fabric's; after one of them the group is unusable. With zero.copies = 2 those who are left when
/// a rank is lost save what they and it had before that error is thrown: Observer::on_rescue().
progress::Report run_training(const job::JobConfig& job, comm::Group group,
                              const TrainerOptions& options, progress::Observer& observer);

}  // namespace bimetal::train
