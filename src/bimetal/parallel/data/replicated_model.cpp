#include "bimetal/parallel/data/replicated_model.h"

#include <torch/csrc/api/include/torch/utils.h>

#include <optional>
#include <unordered_set>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/device/staging.h"
#include "bimetal/parallel/data/bucket.h"
#include "bimetal/parallel/data/gradient_hooks.h"
#include "bimetal/parallel/data/same_model.h"
#include "bimetal/parallel/group_room.h"

namespace bimetal::parallel {

namespace {

using Tensors = std::vector<torch::Tensor>;

torch::Device device_of(const Tensors& parameters) {
  return parameters.empty() ? torch::Device(torch::kCPU) : parameters.front().device();
}

GradientHome resolve(GradientHome home, const torch::Device& device) {
  if (home != GradientHome::automatic) return home;
  return device.is_cpu() ? GradientHome::bucket : GradientHome::tensor;
}

// A rank alone has nothing to sum: without parameters to watch, every step of the work below is
// empty and its gradients stay as backward left them.
Tensors watched(const Tensors& parameters, const comm::Group& group) {
  return group.size() > 1 ? parameters : Tensors();
}

std::vector<BucketPlan> plans_of(const Tensors& parameters, const ReplicatedModelOptions& options) {
  std::vector<ParameterSize> sizes;
  for (const auto& parameter : parameters) {
    sizes.push_back({parameter.scalar_type(), parameter.numel()});
  }
  return plan_buckets(sizes, options.first_bucket_bytes, options.bucket_bytes);
}

}  // namespace

/// Each rank sends every bucket once in a step, in the order of the buckets, whatever it computes:
/// zeros where it has no gradient.
struct ReplicatedModel::Impl {
  Impl(Tensors all, const comm::Group& group, const ReplicatedModelOptions& o);

  bool compressed() const { return options.compression.compression.scheme != comm::Scheme::none; }
  Tensors make_memory(const std::vector<BucketPlan>& plans, comm::Group group) const;
  void take(std::size_t bucket, std::size_t slot);
  void taken(std::size_t bucket);
  void take_missing();
  void deliver(const Bucket& bucket);

  Tensors trained;
  std::unordered_set<const void*> known;  ///< the same
  ReplicatedModelOptions options;
  torch::Device home;
  device::HostStaging staging;
  std::shared_ptr<c10d::Island> island;
  device::CopyMark returned;  ///< the last step's copies out of the buckets
  std::vector<Bucket> buckets;
  BucketExchange exchange;
  std::optional<BucketFilling> filling;  ///< last: its calls use all of the above
};

ReplicatedModel::Impl::Impl(Tensors all, const comm::Group& group, const ReplicatedModelOptions& o)
    : trained(std::move(all)),
      options(o),
      home(device_of(trained)),
      staging(home),
      island(options.form_island && group.size() > 1 ? options.form_island(group) : nullptr),
      exchange(group, options.timeout, island) {
  if (island && compressed()) {
    throw Error(ErrorCode::InvalidArgument,
                "gradients that an island's vendor library sums cannot be compressed");
  }
  options.home = resolve(options.home, home);
  for (const auto& tensor : trained) known.insert(tensor.unsafeGetTensorImpl());
  const auto summed = watched(trained, group);
  const auto plans = plans_of(summed, options);
  const auto memory = make_memory(plans, group);
  for (std::size_t i = 0; i < plans.size(); ++i) buckets.emplace_back(plans[i], summed, memory[i]);
  filling.emplace(
      summed, parameters_of(plans),
      [this](std::size_t bucket, std::size_t slot) { take(bucket, slot); },
      [this](std::size_t bucket) { taken(bucket); });
  if (!compressed()) return;
  std::vector<std::vector<comm::Matrix>> matrices;
  for (const auto& bucket : buckets) matrices.push_back(bucket.matrices());
  exchange.compress(options.compression, std::move(matrices));
}

// On the CPU the buckets lie in memory that the ranks of one host sum in place. Memory that an
// accelerator copies from is page-locked instead. Its rank asks for shared memory all the same,
// since the others do and asking is collective. Compressed buckets travel encoded, so that nothing
// would be gained. Where there are islands, all ranks have one, and their buckets lie on the
// devices.
Tensors ReplicatedModel::Impl::make_memory(const std::vector<BucketPlan>& plans,
                                           comm::Group group) const {
  std::vector<std::size_t> bytes;
  for (const auto& plan : plans) {
    bytes.push_back(Bucket::elements(plan) * c10::elementSize(plan.dtype));
  }
  const bool shared = !compressed() && !island;
  const auto room =
      shared ? GroupRoom(group, GroupRoom::bytes_for(bytes), home.is_cpu()) : GroupRoom();
  Tensors flats;
  for (const auto& plan : plans) {
    const auto count = Bucket::elements(plan);
    if (island) {
      flats.push_back(torch::zeros({count}, torch::dtype(plan.dtype).device(home)));
    } else {
      flats.push_back(home.is_cpu() && shared ? room.take(count, plan.dtype)
                                              : device::host_buffer(count, plan.dtype, home));
    }
  }
  return flats;
}

void ReplicatedModel::Impl::take(std::size_t bucket, std::size_t slot) {
  auto& into = buckets[bucket];
  torch::Tensor& gradient = trained[into.slots()[slot].parameter].mutable_grad();
  into.note(slot, gradient.defined());
  if (!gradient.defined()) {
    into.view(slot).zero_();
    return;
  }
  // Kept as the parameter's own, so that it outlives an asynchronous copy.
  if (gradient.is_sparse()) gradient = gradient.to_dense();
  staging.to_host(gradient, into.view(slot));
  if (options.home == GradientHome::bucket) gradient = into.view(slot);
}

void ReplicatedModel::Impl::taken(std::size_t bucket) {
  if (filling->full(bucket)) {
    buckets[bucket].close();
    // On the device, zeros for unused slots are on their way, too.
    exchange.offer(bucket, buckets[bucket].flat(),
                   island ? staging.mark_all() : staging.mark_to_host());
  }
  exchange.send_ready();
}

void ReplicatedModel::Impl::take_missing() {
  for (std::size_t i = 0; i < buckets.size(); ++i) filling->complete(i);
  exchange.send_ready();
}

void ReplicatedModel::Impl::deliver(const Bucket& bucket) {
  const auto used = bucket.used_by_any();
  for (std::size_t slot = 0; slot < used.size(); ++slot) {
    if (!used[slot]) continue;
    torch::Tensor& parameter = trained[bucket.slots()[slot].parameter];
    torch::Tensor& gradient = parameter.mutable_grad();
    if (options.home == GradientHome::bucket) {
      gradient = bucket.view(slot);
    } else {
      // The device's remaining work may still use the new memory.
      const bool sent = gradient.defined() && gradient.strides() == parameter.strides();
      if (sent) {
        staging.to_device_beside(bucket.view(slot), gradient);
      } else {
        gradient = torch::empty_like(parameter);
        staging.to_device(bucket.view(slot), gradient);
      }
    }
  }
}

ReplicatedModel::ReplicatedModel(const task::ModelState& model, comm::Group group,
                                 const ReplicatedModelOptions& options)
    : ParameterStore(model, std::move(group), options.bucket_bytes, options.timeout),
      impl_(std::make_unique<Impl>(task::tensors_of(trained_parameters(model.parameters)),
                                   this->group(), options)) {
  if (!options.equal) {
    broadcast_tensors(task::tensors_of(model.parameters), 0, this->group(), options.bucket_bytes,
                      options.timeout);
  }
}

ReplicatedModel::~ReplicatedModel() = default;

void ReplicatedModel::begin() {
  impl_->staging.join();  // leftovers of a step that failed
  impl_->returned.wait(Deadline::after(impl_->options.timeout));
  for (auto& parameter : impl_->trained) parameter.mutable_grad() = torch::Tensor();
  impl_->filling->expect_anew();
  impl_->exchange.begin(impl_->buckets.size());
}

/// finish() handles the leftovers of an error in the last pass.
void ReplicatedModel::pass(const std::function<void()>& backward, bool last) {
  if (!last) return backward();
  if (backward) impl_->filling->during(backward);
  impl_->take_missing();
}

void ReplicatedModel::finish(const std::function<void()>& before_sums,
                             const std::function<void()>& when_sent) {
  before_sums();
  impl_->take_missing();
  if (impl_->buckets.empty()) when_sent();
  impl_->exchange.when_sent(when_sent);
  for (std::size_t i = 0; i < impl_->buckets.size(); ++i) {
    impl_->exchange.wait(i);
    impl_->deliver(impl_->buckets[i]);
  }
  impl_->staging.join();
  impl_->returned = impl_->staging.mark_to_device();
}

TensorFacts ReplicatedModel::facts_of(const torch::Tensor& tensor) const {
  return {.trained = impl_->known.contains(tensor.unsafeGetTensorImpl()), .whole = tensor};
}

std::vector<comm::NamedValues> ReplicatedModel::error_feedback() {
  return impl_->exchange.error_feedback();
}

bool ReplicatedModel::set_error_feedback(std::vector<comm::NamedValues> state, std::int64_t steps) {
  return impl_->exchange.set_error_feedback(std::move(state), steps);
}

const ExchangeSpan& ReplicatedModel::times() const noexcept {
  return impl_->exchange.times();
}

}  // namespace bimetal::parallel
