#pragma once
// The data set of a process of a job with parameter servers: found on its machine, fetched from a
// URL, or sent by the process that leads the job. docs/data.md.

#include "bimetal/comm/group.h"
#include "bimetal/data/dataset_files.h"
#include "bimetal/job/job_config.h"
#include "bimetal/parallel/server/directory/directory.h"
#include "bimetal/parallel/server/link/link.h"
#include "bimetal/progress/observer.h"
#include "bimetal/train/trainer.h"

namespace bimetal::train {

/// The sender of the data set, for a process that has none.
struct DataSender {
  /// Tells where it listens (data_link.h). nullptr: there is no such process.
  parallel::server::ServerDirectory* directory = nullptr;
  parallel::server::Credentials credentials = {};
};

/// The place of the files for this process; none for a task that brings its data. One process of
/// each cache is sent them; the others of that cache wait for it. `observer` is told what is sent.
/// Errors: those of share_dataset by a rank alone, if nobody sends; InvalidArgument if the job
/// forbids it; PeerLost, Timeout, System, CorruptData for failures: nothing is then left under a
/// name that anyone reads. Interrupted.
data::DatasetFiles find_job_data(comm::Group alone, const job::JobConfig& job,
                                 const TrainerOptions& options, const DataSender& sender,
                                 progress::Observer& observer);

}  // namespace bimetal::train
