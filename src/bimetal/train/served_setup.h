#pragma once
// What servers and workers of a job must make alike.

#include <string>
#include <vector>

#include "bimetal/data/dataset.h"
#include "bimetal/models/registry.h"
#include "bimetal/parallel/server/credentials.h"
#include "bimetal/parallel/server/shard_plan.h"
#include "bimetal/train/job.h"
#include "bimetal/train/served_job.h"

namespace bimetal::train {

/// The job's data set, which find_served_data() has found, as the job trains on it. Errors: those
/// of data::load_dataset.
data::TrainTest load_served_data(const Job& job, const data::DatasetFiles& files);

/// What a process shows to the others of the job.
parallel::server::Credentials credentials_of(const ServedNetwork& network);

/// Error(Unsupported) for a model that servers cannot train.
parallel::server::ShardPlan plan_of_model(const Job& job, const torch::nn::Module& model);

/// Settings, a digest of the data, and every parameter's name, shape and type, for people to read.
std::vector<std::string> served_facts(const Job& job, const data::TrainTest& data,
                                      const torch::nn::Module& model);

}  // namespace bimetal::train
