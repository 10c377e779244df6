#include "bimetal/train/trainer.h"

#include <fmt/format.h>

#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/data/digest.h"
#include "bimetal/job/job_keys.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/progress/together.h"
#include "bimetal/train/epochs.h"
#include "bimetal/train/libtorch_state.h"
#include "bimetal/train/pipeline/auto_mesh.h"
#include "bimetal/train/rank_journal.h"
#include "bimetal/train/setup.h"

namespace bimetal::train {
namespace {

/// Whether all ranks throw this error by themselves, because they have seen the same figures.
bool agreed(const Error& error) {
  return error.code() == ErrorCode::NotFinite || error.code() == ErrorCode::OutOfMemory ||
         error.code() == ErrorCode::CallMismatch;
}

void require_meeting(const job::JobConfig& job, int ranks, const TrainerOptions& options) {
  if (job.zero.copies == 1 || ranks == 1 || options.members != nullptr) return;
  throw Error(ErrorCode::Unsupported,
              "zero.copies = 2 needs ranks that `bimetal train`, or it with `bimetal join`, has "
              "started: others are ended as soon as one is lost, or have nowhere to meet then; "
              "leave it out, and set checkpoint.every_steps");
}

void end_for_others(comm::Group& group, membership::Membership* members, const std::string& why,
                    const Error& error) {
  group.abort(why);
  if (members != nullptr) members->fail(error);
}

/// As the worker computes it.
job::JobConfig with_own_precision(job::JobConfig job, const job::WorkerSpec& worker) {
  job.train.precision = job::precision_of(job, worker);
  return job;
}

/// The facts that members have in common, for newcomers to match.
std::string fingerprint(const job::JobConfig& job, const task::JobTask& task) {
  std::string text;
  for (const auto& [key, value] : job::facts_of(job)) text += fmt::format("{}={}\n", key, value);
  for (const auto& fact : task.facts()) text += fact + "\n";
  text += fmt::format("{} samples", task.training()->size());
  return data::hex(data::digest_of(text));
}

}  // namespace

progress::Report run_training(const job::JobConfig& job, comm::Group group,
                              const TrainerOptions& options, progress::Observer& observer) {
  const int rank = group.rank();
  auto* const members = options.members;
  try {
    require_deterministic(with_own_precision(job, options.worker), group.size());
    require_meeting(job, group.size(), options);
    const auto own = job::as_worker_has_it(job, options.worker);
    const bool founds = options.doors.empty();  // a newcomer gets a mesh with the others
    if (founds) require_counts(job, group.size());
    const auto settled = founds ? with_mesh(own, group, options, observer) : own;
    const KernelChoice kernels(settled, group.size());
    const auto place = choose_place(settled, options);
    Run run(own, settled, options, observer, place,
            load_shared_task(group, settled, options, observer));
    if (members != nullptr) members->train(fingerprint(job, *run.task));
    return train_epochs(run, group);
  } catch (const progress::Interrupted&) {  // by all ranks alike
    return {.world_size = group.size(), .interrupted = true};
  } catch (const Error& error) {
    // An error on this rank alone must not leave the others waiting.
    if (!agreed(error)) {
      end_for_others(group, members, fmt::format("rank {}: {}", rank, error.what()), error);
    }
    throw;
  } catch (const std::exception& error) {
    const auto told = error_of(error, fmt::format("rank {}", rank), rank);
    end_for_others(group, members, told.what(), told);
    throw told;
  }
}

}  // namespace bimetal::train
