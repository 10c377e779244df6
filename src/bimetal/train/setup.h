#pragma once
// The parts of a training run that are made once, before the first step.

#include <torch/csrc/api/include/torch/types.h>

#include <memory>
#include <string_view>

#include "bimetal/comm/group.h"
#include "bimetal/data/dataset.h"
#include "bimetal/models/registry.h"
#include "bimetal/train/job.h"
#include "bimetal/train/trainer.h"

namespace bimetal::train {

/// Where a rank computes, and in which type.
struct Place {
  torch::Device device{torch::kCPU};
  torch::Dtype dtype = torch::kFloat32;
};

/// "float32" or "float64", as jobs and checkpoints name them.
torch::Dtype dtype_named(std::string_view name);

/// Applies the worker's limits to this process and picks its device. Errors: Unsupported for a
/// device that is not there or that does not know the job's dtype.
Place choose_place(const Job& job, const TrainerOptions& options);

/// The job's data set, the same on every rank, loaded. Collective; tells the observer of its phase.
/// Errors: those of require_same_job, share_dataset and data::load_dataset.
data::TrainTest load_shared_data(comm::Group group, const Job& job, const TrainerOptions& options,
                                 Observer& observer);

/// The model with the parameters that the seed gives, the same on every rank whatever was drawn
/// before. Leaves torch's default generators just behind them.
std::shared_ptr<models::Classifier> make_seeded_model(const Job& job,
                                                      const data::ImageDataset& dataset,
                                                      const Place& place);

}  // namespace bimetal::train
