#pragma once
// The job's data set on every rank: found on its machine, fetched from a URL, or sent by a rank
// that has it; and made sure to be the same everywhere before anything is computed. docs/data.md.

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "bimetal/comm/group.h"
#include "bimetal/data/dataset_files.h"
#include "bimetal/data/transfer/file_transfer.h"
#include "bimetal/job/job_config.h"
#include "bimetal/progress/observer.h"

namespace bimetal::data {

struct SharedDataOptions {
  std::string host_name = {};  ///< for messages
  Fetch fetch = {};            ///< for data at a URL; empty: those are Unsupported
  /// Longest time without progress, of any rank, and of one piece on the network.
  std::chrono::milliseconds timeout{std::chrono::minutes(1)};
  std::function<bool()> interrupt_requested = {};
};

/// Where this rank finds the files of `config`. All ranks must have the same name, send and
/// send_max_gb; the path may differ. A rank alone only looks for its files. Collective.
///
/// Errors. The same on all ranks: that of data::find_dataset or of the fetch if nobody has the
/// data; CallMismatch naming the rank whose copy differs; InvalidArgument naming a rank without a
/// copy that may not be sent one. On one rank, which must then end the group: System for a disk
/// that is full, CorruptData for damaged files. Timeout for a rank that makes no progress.
/// Interrupted.
DatasetFiles share_dataset(comm::Group group, const job::DataConfig& config,
                           const SharedDataOptions& options, progress::Observer& observer);

}  // namespace bimetal::data
