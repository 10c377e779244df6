#pragma once
// The job's data set on every rank: found on its machine, fetched from a URL, or sent by a rank
// that has it; and made sure to be the same everywhere before anything is computed. docs/data.md.

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "bimetal/comm/group.h"
#include "bimetal/data/dataset_files.h"
#include "bimetal/data/fetch.h"
#include "bimetal/train/job.h"
#include "bimetal/train/observer.h"

namespace bimetal::train {

struct SharedDataOptions {
  std::string host_name = {};  ///< for messages
  data::Fetch fetch = {};      ///< for data at a URL; empty: those are Unsupported
  /// Longest time without progress, of any rank, and of one piece on the network.
  std::chrono::milliseconds timeout{std::chrono::minutes(1)};
  std::function<bool()> interrupt_requested = {};
};

/// Where this rank finds the files of `config`. All ranks must have the same name, serve and
/// serve_max_gb; the path may differ. A rank alone only looks for its files. Collective.
///
/// Errors. The same on all ranks: that of data::find_dataset or of the fetch if nobody has the
/// data; CallMismatch naming the rank whose copy differs; InvalidArgument naming a rank without a
/// copy that may not be sent one. On one rank, which must then end the group: System for a disk
/// that is full, CorruptData for damaged files. Timeout for a rank that makes no progress.
/// Interrupted.
data::DatasetFiles share_dataset(comm::Group group, const DataConfig& config,
                                 const SharedDataOptions& options, Observer& observer);

}  // namespace bimetal::train
