#include "bimetal/data/prefetch.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/device/staging.h"

namespace bimetal::data {

struct Prefetcher::Impl {
  Impl(std::shared_ptr<const task::Dataset> set, torch::Device place)
      : dataset(std::move(set)), device(place), thread([this] { run(); }) {}

  /// Metal's memory is the host's, where a copy from page-locked memory would be one more.
  bool copies_ahead() const { return !device.is_cpu() && !device.is_mps(); }

  ~Impl() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    thread.join();
  }

  void run();
  task::Values on_device(task::Values batch);
  void hand_over(const task::Values& batch) const;

  const std::shared_ptr<const task::Dataset> dataset;
  const torch::Device device;

  std::mutex mutex;  // guards all below but the thread
  std::condition_variable changed;
  bool stopping = false;
  bool requested = false;             ///< by the owner, neither taken nor discarded
  bool building = false;              ///< the thread is at work
  std::optional<task::Draws> wanted;  ///< not yet begun
  std::optional<task::Values> batch;
  std::exception_ptr error;

  // For the thread, until a batch is there.
  std::optional<c10::Stream> stream;  ///< of copies to the device
  std::optional<c10::Event> copied;   ///< behind the last batch's

  std::thread thread;  // last: it uses all of the above
};

namespace {

void require_samples(const task::Values& values, std::int64_t samples) {
  if (values.empty()) throw Error(ErrorCode::InvalidArgument, "Dataset::batch gave no tensors");
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto& tensor = values[i];
    if (tensor.defined() && tensor.dim() > 0 && tensor.size(0) == samples) continue;
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("Dataset::batch was asked for {} samples, and its tensor {} is {}: the "
                            "first dimension of each has to be the samples",
                            samples, i,
                            tensor.defined() ? c10::str("of shape ", tensor.sizes()) : "nothing"));
  }
}

}  // namespace

void Prefetcher::Impl::run() {
  torch::NoGradGuard no_grad;
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return stopping || wanted.has_value(); });
    if (stopping) return;
    const auto draws = std::make_shared<const task::Draws>(*std::exchange(wanted, std::nullopt));
    building = true;
    lock.unlock();
    std::optional<task::Values> built;
    std::exception_ptr failure;
    try {
      const task::DrawScope scope(draws);
      auto values = dataset->batch(draws->samples);
      require_samples(values, std::ssize(draws->samples));
      built = on_device(std::move(values));
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    building = false;
    batch = std::move(built);
    error = failure;
    changed.notify_all();
  }
}

/// A copy from pageable memory blocks, and one on the stream of the computation waits for all that
/// this has queued. From page-locked memory, on a stream of its own, it runs beside.
task::Values Prefetcher::Impl::on_device(task::Values batch) {
  if (device.is_cpu()) return batch;
  if (!copies_ahead()) return task::to_device(batch, device);
  if (!stream) stream = device::stream_of_its_own(device);
  const c10::StreamGuard on_copy_stream(*stream);
  for (auto& values : batch) values = values.pin_memory();
  auto moved = task::to_device(batch, device, /*non_blocking=*/true);
  copied.emplace(device.type());
  copied->record(*stream);
  return moved;
}

/// Later work on the caller's stream sees the batch. Its memory is not used again before that work
/// is done.
void Prefetcher::Impl::hand_over(const task::Values& values) const {
  if (!copied) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  const auto current = guard.getStream(device);
  copied->block(current);
  for (const auto& value : values) {
    guard.recordDataPtrOnStream(value.storage().data_ptr(), current);
  }
}

Prefetcher::Prefetcher(std::shared_ptr<const task::Dataset> dataset, torch::Device device)
    : impl_(std::make_unique<Impl>(std::move(dataset), device)) {}

Prefetcher::~Prefetcher() = default;

void Prefetcher::request(task::Draws draws) {
  {
    std::lock_guard lock(impl_->mutex);
    if (impl_->requested) {
      throw Error(ErrorCode::InvalidArgument,
                  "a batch is requested already; take() or discard() it first");
    }
    impl_->requested = true;
    impl_->wanted = std::move(draws);
  }
  impl_->changed.notify_all();
}

task::Values Prefetcher::take() {
  std::unique_lock lock(impl_->mutex);
  if (!impl_->requested) {
    throw Error(ErrorCode::InvalidArgument, "no batch was requested; call request() first");
  }
  impl_->changed.wait(lock, [this] { return impl_->batch.has_value() || impl_->error; });
  impl_->requested = false;
  if (const auto failure = std::exchange(impl_->error, nullptr)) std::rethrow_exception(failure);
  auto batch = *std::exchange(impl_->batch, std::nullopt);
  impl_->hand_over(batch);
  return batch;
}

void Prefetcher::discard() {
  std::unique_lock lock(impl_->mutex);
  impl_->wanted.reset();
  impl_->changed.wait(lock, [this] { return !impl_->building; });
  impl_->batch.reset();
  impl_->error = nullptr;
  impl_->requested = false;
}

EpochSampler make_sampler(const task::Dataset& dataset, std::uint64_t seed, std::int64_t group) {
  return EpochSampler(dataset.size(), seed, /*shuffle=*/true, task::weights_of(dataset), group);
}

BatchFeed::BatchFeed(std::shared_ptr<const task::Dataset> dataset, EpochSampler sampler, int rank,
                     std::int64_t global_batch, std::int64_t epochs, torch::Device device)
    : sampler_(std::move(sampler)),
      prefetcher_(std::move(dataset), device),
      rank_(rank),
      global_batch_(global_batch),
      epochs_(epochs) {}

void BatchFeed::draw(std::span<const std::int64_t> shares) {
  if (next_) return;
  const auto before = sampler_.position();
  const auto epoch = before.epoch + (sampler_.remaining() == 0 ? 1 : 0);
  if (epoch >= epochs_) return;
  Plan plan;
  plan.before = before;
  plan.samples = sampler_.deal(shares, global_batch_);
  plan.after = sampler_.position();
  plan.ends_epoch = sampler_.remaining() == 0;
  prefetcher_.request(
      task::Draws::of(sampler_.seed(), plan.samples.epoch, plan.samples.of_rank(rank_)));
  next_ = std::move(plan);
}

task::Values BatchFeed::take() {
  next_.reset();
  return prefetcher_.take();
}

void BatchFeed::rewind(const SamplerPosition& position) {
  prefetcher_.discard();
  next_.reset();
  sampler_.seek(position);
}

}  // namespace bimetal::data
