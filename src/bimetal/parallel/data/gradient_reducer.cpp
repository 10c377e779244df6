#include "bimetal/parallel/data/gradient_reducer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/parallel/data/bucket_plan.h"
#include "bimetal/parallel/group_room.h"

namespace bimetal::parallel {

namespace {

torch::Device device_of(const std::vector<torch::Tensor>& parameters) {
  return parameters.empty() ? torch::Device(torch::kCPU) : parameters.front().device();
}

GradientHome resolve(GradientHome home, const torch::Device& device) {
  if (home != GradientHome::automatic) return home;
  return device.is_cpu() ? GradientHome::bucket : GradientHome::tensor;
}

// A rank alone has nothing to sum: without parameters to watch, every step of the work below is
// empty and its gradients stay as backward left them.
std::vector<torch::Tensor> watched(const std::vector<torch::Tensor>& parameters,
                                   const comm::Group& group) {
  return group.size() > 1 ? parameters : std::vector<torch::Tensor>();
}

}  // namespace

GradientReducer::GradientReducer(std::vector<torch::Tensor> parameters, comm::Group group,
                                 ReducerOptions options)
    : parameters_(std::move(parameters)),
      options_(options),
      device_(device_of(parameters_)),
      staging_(device_),
      exchange_(group, options.timeout, options.island),
      hooks_(watched(parameters_, group), [this](std::size_t i) { on_gradient(i); }) {
  if (options.island && options.compression.compression.scheme != comm::Scheme::none) {
    throw Error(ErrorCode::InvalidArgument,
                "gradients that an island's vendor library sums cannot be compressed");
  }
  options_.home = resolve(options.home, device_);
  make_buckets(group);
  if (options_.compression.compression.scheme != comm::Scheme::none) compress_buckets();
}

void GradientReducer::make_buckets(comm::Group group) {
  std::vector<ParameterSize> sizes;
  for (const auto& parameter : watched(parameters_, group)) {
    sizes.push_back({parameter.scalar_type(), parameter.numel()});
  }
  places_.resize(sizes.size());
  auto plans = plan_buckets(sizes, options_.first_bucket_bytes, options_.bucket_bytes);
  const auto memory = make_memory(plans, std::move(group));
  for (std::size_t i = 0; i < plans.size(); ++i) {
    for (std::size_t slot = 0; slot < plans[i].slots.size(); ++slot) {
      places_[plans[i].slots[slot].parameter] = {i, slot};
    }
    buckets_.emplace_back(std::move(plans[i]), parameters_, memory[i]);
  }
}

// On the CPU the buckets lie in memory that the ranks of one host sum in place. What an accelerator
// copies from is page-locked instead; its rank asks for shared memory all the same, since the
// others do and asking is collective. Compressed buckets travel encoded, so that nothing would be
// gained. Where there are islands, all ranks have one, and their buckets lie on the devices.
std::vector<torch::Tensor> GradientReducer::make_memory(const std::vector<BucketPlan>& plans,
                                                        comm::Group group) {
  if (options_.island) return make_device_memory(plans);
  const bool shared = options_.compression.compression.scheme == comm::Scheme::none;
  std::vector<std::size_t> bytes;
  for (const auto& plan : plans) {
    bytes.push_back(Bucket::elements(plan) * c10::elementSize(plan.dtype));
  }
  const auto room =
      shared ? GroupRoom(group, GroupRoom::bytes_for(bytes), device_.is_cpu()) : GroupRoom();
  std::vector<torch::Tensor> flats;
  for (const auto& plan : plans) {
    const auto count = Bucket::elements(plan);
    flats.push_back(device_.is_cpu() && shared ? room.take(count, plan.dtype)
                                               : device::host_buffer(count, plan.dtype, device_));
  }
  return flats;
}

std::vector<torch::Tensor> GradientReducer::make_device_memory(
    const std::vector<BucketPlan>& plans) const {
  std::vector<torch::Tensor> flats;
  for (const auto& plan : plans) {
    flats.push_back(torch::zeros({Bucket::elements(plan)},
                                 torch::TensorOptions().dtype(plan.dtype).device(device_)));
  }
  return flats;
}

void GradientReducer::compress_buckets() {
  std::vector<std::vector<comm::Matrix>> matrices;
  for (const auto& bucket : buckets_) matrices.push_back(bucket.matrices());
  exchange_.compress(options_.compression, std::move(matrices));
}

void GradientReducer::begin() {
  returned_.wait(Deadline::after(options_.timeout));
  for (auto& parameter : parameters_) parameter.mutable_grad() = torch::Tensor();
  for (auto& bucket : buckets_) bucket.reset();
  exchange_.begin(buckets_.size());
}

void GradientReducer::reduce_during(const std::function<void()>& backward) {
  reducing_ = true;
  try {
    backward();
  } catch (...) {
    reducing_ = false;
    throw;
  }
  reducing_ = false;
  take_missing();
}

void GradientReducer::finish() {
  take_missing();
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    exchange_.wait(i);
    deliver(buckets_[i]);
  }
  returned_ = staging_.mark_to_device();
}

void GradientReducer::on_gradient(std::size_t parameter) {
  if (!reducing_) return;
  const std::lock_guard lock(mutex_);
  const auto [bucket, slot] = places_[parameter];
  if (buckets_[bucket].filled(slot)) {
    throw Error(ErrorCode::Unsupported,
                fmt::format("parameter {} of shape [{}] received its gradient in two parts of one "
                            "backward pass; run backward without nested backward calls",
                            parameter, fmt::join(parameters_[parameter].sizes(), ", ")));
  }
  take(parameter);
  exchange_.send_ready();
}

void GradientReducer::take(std::size_t parameter) {
  const auto [index, slot] = places_[parameter];
  Bucket& bucket = buckets_[index];
  torch::Tensor& gradient = parameters_[parameter].mutable_grad();
  if (!gradient.defined()) {
    bucket.fill_unused(slot);
  } else {
    // Kept as the parameter's own, so that it outlives an asynchronous copy.
    if (gradient.is_sparse()) gradient = gradient.to_dense();
    staging_.to_host(gradient, bucket.view(slot));
    if (options_.home == GradientHome::bucket) gradient = bucket.view(slot);
    bucket.fill(slot);
  }
  if (!bucket.complete()) return;
  // On the device, zeros for unused slots are on their way, too.
  exchange_.offer(index, bucket.flat(),
                  options_.island ? staging_.mark_all() : staging_.mark_to_host());
}

void GradientReducer::take_missing() {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = places_.size(); i-- > 0;) {
    if (!buckets_[places_[i].bucket].filled(places_[i].slot)) take(i);
    exchange_.send_ready();
  }
}

void GradientReducer::deliver(const Bucket& bucket) {
  const auto used = bucket.used_by_any();
  for (std::size_t slot = 0; slot < used.size(); ++slot) {
    if (!used[slot]) continue;
    torch::Tensor& parameter = parameters_[bucket.slots()[slot].parameter];
    torch::Tensor& gradient = parameter.mutable_grad();
    if (options_.home == GradientHome::bucket) {
      gradient = bucket.view(slot);
    } else {
      if (!gradient.defined()) gradient = torch::empty_like(parameter);
      staging_.to_device(bucket.view(slot), gradient);
    }
  }
}

}  // namespace bimetal::parallel
