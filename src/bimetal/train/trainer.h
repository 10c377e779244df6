#pragma once
// One rank's training run, from job to report: data → balanced batches → gradients → fabric → step
// → checkpoint.

#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/data/transfer/file_transfer.h"
#include "bimetal/job/job_config.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/membership/membership.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/progress/observer.h"
#include "bimetal/progress/rank_log.h"
#include "bimetal/progress/report.h"
#include "bimetal/progress/requests.h"
#include "bimetal/train/profile/profile.h"

namespace bimetal::train {

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
  /// Polled between steps; true: this rank leaves after the step, and the others go on.
  std::function<bool()> leave_requested = {};
  /// The members of the job, founded by its first group. When members come, leave or are lost,
  /// those who are there go on. None: a lost rank ends the job. Must outlive the run.
  membership::Membership* members = nullptr;
  /// False, with members: if one is lost, zero.copies = 2 saves its state, and the job ends.
  bool goes_on = true;
  /// For a rank that comes to a job which trains already: the members' addresses.
  std::vector<net::Endpoint> doors = {};
  /// Users' requests to the run. The rank that leads takes them between steps. Must outlive the
  /// run.
  progress::Requests* requests = nullptr;
  /// This rank's log beside its figures: observers of rank 0 are told. All ranks have one, or none.
  /// Must outlive the run.
  progress::RankLog* log = nullptr;
  data::Fetch fetch = {};                      ///< for data at a URL; empty: that is Unsupported
  std::optional<ProfileRequest> profile = {};  ///< rank 0's counts
};

/// Runs `job` as this group's rank and returns the report (complete on every rank; of a run that
/// was interrupted before its first step, little more than that). Collective. Errors: those of
/// share_dataset, NotFinite naming step and rank (the last checkpoint stays), OutOfMemory, and the
/// fabric's; after one of them the group is unusable.
///
/// With members, a lost rank is none of these errors: docs/elastic.md. With zero.copies = 2 the
/// remaining ranks save their state and its: Observer::on_rescue(). A rank that comes later (doors)
/// has a `group` of its own alone.
progress::Report run_training(const job::JobConfig& job, comm::Group group,
                              const TrainerOptions& options, progress::Observer& observer);

}  // namespace bimetal::train
