#pragma once
// The objects that servers and workers of a job must make alike.

#include <torch/csrc/api/include/torch/optim/optimizer.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bimetal/comm/group.h"
#include "bimetal/data/dataset_files.h"
#include "bimetal/job/job_config.h"
#include "bimetal/parallel/server/directory/directory.h"
#include "bimetal/parallel/server/link/link.h"
#include "bimetal/parallel/server/parameter_server.h"
#include "bimetal/parallel/server/shard_plan.h"
#include "bimetal/parallel/server/shard_store.h"
#include "bimetal/progress/observer.h"
#include "bimetal/task/task.h"
#include "bimetal/train/server/server_job.h"
#include "bimetal/train/trainer.h"

namespace bimetal::train {

/// LedgerOptions::weight for samples in the order that the seed gives; empty where all weigh 1.
std::function<std::int64_t(std::int64_t epoch, std::int64_t offset, std::int64_t count)>
weights_in_order(const task::Dataset& dataset, std::uint64_t seed);

/// Whether the job leaves to its processes how much each server keeps: each then needs what they
/// measure before it can plan the shards (parallel/server/directory/directory.h).
bool weighs_servers(const job::ServersConfig& servers);

parallel::server::Weighing weighing_of(const job::JobConfig& job,
                                       parallel::server::ServerDirectory* directory,
                                       const parallel::server::Credentials& credentials);

/// As if the job file had given these.
void set_weights(job::ServersConfig& servers, std::vector<double> weights);

/// For patience_for(): the job's value, or else the environment's.
std::optional<std::chrono::milliseconds> peer_timeout_of(const job::JobConfig& job);

/// Error(Unsupported) for a model that servers cannot train.
parallel::server::ShardPlan plan_of_model(const job::JobConfig& job, const task::ModelState& model);

/// Settings, a digest of the data, and every parameter's name, shape and type, for people to read.
std::vector<std::string> common_facts(const job::JobConfig& job, const task::Task& task,
                                      const task::ModelState& model);

// Between whole tensors, as checkpoints hold them, and the pieces that parameter servers keep.

/// A server's parameters and what its optimizer has learnt, as bytes.
parallel::server::Body shard_state(parallel::server::ShardStore& store);

/// Puts the servers' states together into `model` and `optimizer`, whose parameters are those of
/// the plan, in its order. Error(CorruptData), naming the server, for bytes that do not fit.
void assemble_state(std::span<const parallel::server::ServerState> states,
                    const parallel::server::ShardPlan& plan, const task::ModelState& model,
                    torch::optim::Optimizer& optimizer);

/// Gives `store`'s optimizer its part of what `optimizer` has learnt about `model`.
void restore_shard(parallel::server::ShardStore& store, const torch::optim::Optimizer& optimizer,
                   const task::ModelState& model);

// The data set of a process of a job with parameter servers: found on its machine, fetched from a
// URL, or sent by the process that leads the job. docs/data.md.

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
