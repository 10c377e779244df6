#include "bimetal/train/setup.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <mutex>

#include "bimetal/base/error.h"
#include "bimetal/device/device.h"
#include "bimetal/train/image_shape.h"
#include "bimetal/train/same_job.h"
#include "bimetal/train/shared_data.h"

namespace bimetal::train {

torch::Dtype dtype_named(std::string_view name) {
  return name == "float64" ? torch::kFloat64 : torch::kFloat32;
}

Place choose_place(const Job& job, const TrainerOptions& options) {
  device::apply_worker_limits(options.worker, options.local_world_size);
  Place place;
  place.device = device::select_device(options.worker, options.local_rank);
  place.dtype = dtype_named(job.train.dtype);
  if (place.dtype == torch::kFloat64 && place.device.is_mps()) {
    throw Error(ErrorCode::Unsupported,
                "train.dtype is \"float64\", which Apple's GPUs do not know: take \"float32\", or "
                "give this machine --worker cpu");
  }
  return place;
}

data::TrainTest load_shared_data(comm::Group group, const Job& job, const TrainerOptions& options,
                                 Observer& observer) {
  observer.on_phase("loading data");
  const std::chrono::milliseconds timeout(static_cast<std::int64_t>(job.parallel.timeout_s * 1000));
  require_same_job(group, job, timeout);
  return data::load_dataset(share_dataset(group, job.data,
                                          {.host_name = options.host_name,
                                           .fetch = options.fetch,
                                           .timeout = timeout,
                                           .interrupt_requested = options.interrupt_requested},
                                          observer));
}

std::shared_ptr<models::Classifier> make_seeded_model(const Job& job,
                                                      const data::ImageDataset& dataset,
                                                      const Place& place) {
  // Ranks that are threads of one process share the generator: one at a time seeds and draws.
  static std::mutex drawing;
  const std::scoped_lock lock(drawing);
  torch::manual_seed(job.train.seed);
  // Drawn in float32 on the CPU and then converted: equal on every device and for every dtype.
  auto model = models::make_model(job.model.name, image_shape(dataset), job.model.hidden);
  model->to(place.device, place.dtype);
  return model;
}

}  // namespace bimetal::train
