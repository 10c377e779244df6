#pragma once
// A copy of the data set for the ranks that have none, over the fabric, into the cache of their
// machines: private to shared_data.cpp.

#include <string>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/data/dataset_files.h"
#include "bimetal/train/data_copies.h"
#include "bimetal/train/job.h"
#include "bimetal/train/observer.h"
#include "bimetal/train/together.h"

namespace bimetal::train {

struct ServedData {
  const DataConfig& config;
  const std::vector<Copy>& copies;  ///< of all ranks: equal, and all contents known
  const std::vector<std::string>& names;
  const data::DatasetFiles& found;  ///< this rank's copy, if it has one
};

/// The files of this rank: its own or, where it has none, those in its cache, which were there from
/// an earlier job or have been sent by the reference rank; one rank of each cache receives them.
/// Collective. `options.what` is ignored. Errors: see share_dataset.
data::DatasetFiles serve_data(comm::Group group, const ServedData& data,
                              const TogetherOptions& options, Observer& observer);

}  // namespace bimetal::train
