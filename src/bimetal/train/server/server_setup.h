#pragma once
// What servers and workers of a job must make alike.

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bimetal/job/job_config.h"
#include "bimetal/parallel/server/link/link.h"
#include "bimetal/parallel/server/shard_plan.h"
#include "bimetal/task/model_state.h"
#include "bimetal/task/task.h"
#include "bimetal/train/server/server_job.h"

namespace bimetal::train {

/// LedgerOptions::weight for samples in the order that the seed gives; empty where all weigh 1.
std::function<std::int64_t(std::int64_t epoch, std::int64_t offset, std::int64_t count)>
weights_in_order(const task::Dataset& dataset, std::uint64_t seed);

/// What a process shows to the others of the job.
parallel::server::Credentials credentials_of(const ServerNetwork& network);

/// As patience_for() takes it: of the job, or else of the environment.
std::optional<std::chrono::milliseconds> peer_timeout_of(const job::JobConfig& job);

/// Error(Unsupported) for a model that servers cannot train.
parallel::server::ShardPlan plan_of_model(const job::JobConfig& job, const task::ModelState& model);

/// Settings, a digest of the data, and every parameter's name, shape and type, for people to read.
std::vector<std::string> common_facts(const job::JobConfig& job, const task::Task& task,
                                      const task::ModelState& model);

}  // namespace bimetal::train
