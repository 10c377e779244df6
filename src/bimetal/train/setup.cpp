#include "bimetal/train/setup.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/data/transfer/shared_data.h"
#include "bimetal/device/device.h"
#include "bimetal/job/job_keys.h"
#include "bimetal/job/worker_spec.h"
#include "bimetal/parallel/shard/flat_parameters.h"
#include "bimetal/task/catalog/job_task.h"
#include "bimetal/task/task.h"

namespace bimetal::train {

device::Place choose_place(const job::JobConfig& job, const TrainerOptions& options) {
  job::require_possible(job, {&options.worker, 1});
  device::apply_worker_limits(options.worker, options.local_world_size);
  device::Place place;
  place.device = device::select_device(options.worker, options.local_rank);
  place.dtype = device::dtype_named(job.train.dtype);
  if (place.dtype == torch::kFloat64 && place.device.is_mps()) {
    throw Error(ErrorCode::Unsupported,
                "train.dtype is \"float64\", which Apple's GPUs do not know: take \"float32\", or "
                "give this machine --worker cpu");
  }
  return place;
}

std::shared_ptr<const task::JobTask> load_shared_task(comm::Group group, const job::JobConfig& job,
                                                      const TrainerOptions& options,
                                                      progress::Observer& observer) {
  observer.on_phase("loading data");
  const auto timeout = milliseconds_of(job.parallel.timeout_s);
  job::require_same_job(group, job, timeout);
  data::DatasetFiles files;
  if (!task::is_python_task(job)) {
    files = data::share_dataset(group, job.data,
                                {.host_name = options.host_name,
                                 .fetch = options.fetch,
                                 .timeout = timeout,
                                 .interrupt_requested = options.interrupt_requested},
                                observer);
  }
  auto task = task::make_task(job, files);
  // Files have been compared, which a task that brings its data has none of.
  if (task::is_python_task(job)) job::require_same_facts(group, task->facts(), timeout);
  if (job.data.name == "images" && !task::is_python_task(job)) {
    observer.on_notice(fmt::format("{} images in {} classes to train on", task->training()->size(),
                                   task->description().classes));
  }
  for (const auto& notice : task->notices()) observer.on_notice(notice);
  return task;
}

namespace {

/// Ranks that are threads of one process share torch's generator: one at a time seeds and draws.
std::mutex drawing;

/// `dtype` must be able to hold the task's values.
void require_kept(const task::ModelState& model, torch::Dtype dtype) {
  if (dtype == torch::kFloat64) return;
  for (const auto* tensors : {&model.parameters, &model.buffers}) {
    for (const auto& [name, tensor] : *tensors) {
      if (tensor.scalar_type() != torch::kFloat64) continue;
      throw Error(ErrorCode::InvalidArgument,
                  fmt::format("'{}' of the task's model is float64 and would become {}: make the "
                              "model in float32, which train.dtype = \"float64\" converts; "
                              "DataParallel of a module keeps the module's type",
                              name, c10::toString(dtype)));
    }
  }
}

template <typename Make>
auto make_seeded(std::uint64_t seed, Make make) {
  const std::scoped_lock lock(drawing);
  torch::manual_seed(seed);
  return make();
}

}  // namespace

task::Model make_seeded_model(const task::Task& task, std::uint64_t seed,
                              const device::Place& place) {
  // Drawn in float32 on the CPU and then converted: equal on every device and for every dtype.
  auto model = make_seeded(seed, [&] { return task.make_model(); });
  task::require_distinct_names(model);
  require_kept(model, place.dtype);
  model.to(place.device, place.dtype);
  return model;
}

task::Model make_model_of_sizes(const task::Task& task) {
  auto by_units = task.make_model_by_units([](const task::Unit& unit) {
    for (const auto& [name, tensor] : unit.parameters) parallel::shard::hollow_out(tensor);
  });
  return by_units ? std::move(*by_units) : task.make_model();
}

StartingModel make_starting_model(const job::JobConfig& job,
                                  const std::shared_ptr<const task::Task>& task,
                                  const device::Place& place) {
  const auto seed = job.train.seed;
  const bool in_parts = job.mesh.tensor > 1;  // which are cut from a whole model
  const bool whole = job.zero.level < 3 && job.mesh.stages == 1;
  if (whole || in_parts) return {make_seeded_model(*task, seed, place)};
  const auto by_units = [=](const task::UnitMade& made) {
    return make_seeded(seed, [&] {
      return task->make_model_by_units([&](const task::Unit& unit) {
        const task::Model alone{{unit}};
        require_kept(alone, place.dtype);
        alone.to(place.device, place.dtype);
        made(unit);
      });
    });
  };
  auto hollow = by_units([](const task::Unit& unit) {
    for (const auto& [name, tensor] : unit.parameters) {
      if (tensor.requires_grad()) parallel::shard::hollow_out(tensor);
    }
  });
  if (!hollow) return {make_seeded_model(*task, seed, place)};
  return {std::move(*hollow), by_units};
}

ModelSize size_of_model(const task::Task& task) {
  ModelSize size;
  for (const auto& parameter : make_model_of_sizes(task).parameters()) {
    size.by_units = size.by_units || parallel::shard::is_hollow(parameter);
    size.elements += static_cast<double>(parameter.numel());
  }
  return size;
}

namespace {

bool corrects_momentum(const job::JobConfig& job, int world_size) {
  return world_size > 1 && job.compression.gradients == "topk" && job.train.optimizer == "sgd";
}

}  // namespace

comm::CompressedAllReduceOptions gradient_compression(const job::JobConfig& job, int world_size) {
  comm::CompressedAllReduceOptions options;
  options.compression.scheme = comm::scheme_of(job.compression.gradients);
  options.compression.links = comm::compressed_links_of(job.compression.links);
  options.compression.density = job.compression.topk_density;
  options.compression.momentum = corrects_momentum(job, world_size) ? job.train.momentum : 0;
  // A value beyond the limit is refused by its own check.
  options.compression.rank =
      static_cast<int>(std::min<std::int64_t>(job.compression.powersgd_rank, 1 << 30));
  options.warmup_steps = job.compression.topk_warmup_steps;
  return options;
}

job::TrainConfig optimizer_config(const job::JobConfig& job, int world_size) {
  job::TrainConfig config = job.train;
  if (corrects_momentum(job, world_size)) config.momentum = 0;
  return config;
}

}  // namespace bimetal::train
