#pragma once
// What servers and workers of a job must make alike.

#include <string>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/data/dataset.h"
#include "bimetal/models/registry.h"
#include "bimetal/parallel/server/shard_plan.h"
#include "bimetal/train/job.h"
#include "bimetal/train/observer.h"
#include "bimetal/train/trainer.h"

namespace bimetal::train {

/// The job's data set, found on this machine, as the job trains on it. No process of the job sends
/// it to another. Errors: those of load_shared_data by a rank alone; a URL is Unsupported.
data::TrainTest load_served_data(comm::Group alone, const Job& job, TrainerOptions options,
                                 Observer& observer);

/// Error(Unsupported) for a model that servers cannot train.
parallel::server::ShardPlan plan_of_model(const Job& job, const torch::nn::Module& model);

/// Settings, a digest of the data, and every parameter's name, shape and type, for people to read.
std::vector<std::string> served_facts(const Job& job, const data::TrainTest& data,
                                      const torch::nn::Module& model);

}  // namespace bimetal::train
