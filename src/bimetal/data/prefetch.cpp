#include "bimetal/data/prefetch.h"

#include <torch/torch.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "bimetal/base/error.h"

namespace bimetal::data {

struct Prefetcher::Impl {
  Impl(ImageDataset set, torch::Dtype type, torch::Device place)
      : dataset(std::move(set)), dtype(type), device(place), thread([this] { run(); }) {}

  ~Impl() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    thread.join();
  }

  void run();
  Batch on_device(Batch batch) const;

  const ImageDataset dataset;  // shares its tensors with the caller's
  const torch::Dtype dtype;
  const torch::Device device;

  std::mutex mutex;  // guards all below but the thread
  std::condition_variable changed;
  bool stopping = false;
  bool requested = false;                ///< by the owner, neither taken nor discarded
  bool building = false;                 ///< the thread is at work
  std::optional<torch::Tensor> indices;  ///< not yet begun
  std::optional<Batch> batch;
  std::exception_ptr error;

  std::thread thread;  // last: it uses all of the above
};

void Prefetcher::Impl::run() {
  torch::NoGradGuard no_grad;
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return stopping || indices.has_value(); });
    if (stopping) return;
    const torch::Tensor wanted = *std::exchange(indices, std::nullopt);
    building = true;
    lock.unlock();
    std::optional<Batch> built;
    std::exception_ptr failure;
    try {
      built = on_device(make_batch(dataset, wanted, dtype));
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

/// A CUDA copy from pageable memory blocks; from pinned memory it runs beside the computation, in
/// order with later kernels because both use the device's default stream.
Batch Prefetcher::Impl::on_device(Batch batch) const {
  if (device.is_cpu()) return batch;
  if (device.is_cuda()) batch = {batch.x.pin_memory(), batch.y.pin_memory()};
  return {batch.x.to(device, /*non_blocking=*/device.is_cuda()),
          batch.y.to(device, /*non_blocking=*/device.is_cuda())};
}

Prefetcher::Prefetcher(const ImageDataset& dataset, torch::Dtype dtype, torch::Device device)
    : impl_(std::make_unique<Impl>(dataset, dtype, device)) {}

Prefetcher::~Prefetcher() = default;

void Prefetcher::request(torch::Tensor indices) {
  {
    std::lock_guard lock(impl_->mutex);
    if (impl_->requested) {
      throw Error(ErrorCode::InvalidArgument,
                  "a batch is requested already; take() or discard() it first");
    }
    impl_->requested = true;
    impl_->indices = std::move(indices);
  }
  impl_->changed.notify_all();
}

Batch Prefetcher::take() {
  std::unique_lock lock(impl_->mutex);
  if (!impl_->requested) {
    throw Error(ErrorCode::InvalidArgument, "no batch was requested; call request() first");
  }
  impl_->changed.wait(lock, [this] { return impl_->batch.has_value() || impl_->error; });
  impl_->requested = false;
  if (const auto failure = std::exchange(impl_->error, nullptr)) std::rethrow_exception(failure);
  return *std::exchange(impl_->batch, std::nullopt);
}

void Prefetcher::discard() {
  std::unique_lock lock(impl_->mutex);
  impl_->indices.reset();
  impl_->changed.wait(lock, [this] { return !impl_->building; });
  impl_->batch.reset();
  impl_->error = nullptr;
  impl_->requested = false;
}

}  // namespace bimetal::data
