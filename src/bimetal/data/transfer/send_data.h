#pragma once
// A copy of the data set for the ranks that have none, over the fabric, into the cache of their
// machines: private to shared_data.cpp.

#include <string>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/data/dataset_files.h"
#include "bimetal/data/transfer/data_copies.h"
#include "bimetal/job/job_config.h"
#include "bimetal/progress/observer.h"
#include "bimetal/progress/together.h"

namespace bimetal::data {

struct SentData {
  const job::DataConfig& config;
  const std::vector<Copy>& copies;  ///< of all ranks: equal, and all contents known
  const std::vector<std::string>& names;
  const DatasetFiles& found;  ///< this rank's copy, if it has one
};

/// The files of this rank: its own or, where it has none, those in its cache, which were there from
/// an earlier job or have been sent by the reference rank; one rank of each cache receives them.
/// Collective. `options.what` is ignored. Errors: see share_dataset.
DatasetFiles send_data(comm::Group group, const SentData& data,
                       const progress::TogetherOptions& options, progress::Observer& observer);

}  // namespace bimetal::data
