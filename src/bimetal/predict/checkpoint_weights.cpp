#include "bimetal/predict/checkpoint_weights.h"

#include <torch/csrc/api/include/torch/types.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/base/log.h"

namespace bimetal::predict {
namespace fs = std::filesystem;

struct CheckpointWeights::Impl {
  Impl(const fs::path& given, std::chrono::milliseconds every)
      : path(given),
        look_every(every),
        saved(checkpoint::load_saved_model(given)),
        description(saved.description),
        seen(saved.sequence) {}
  ~Impl() {
    {
      const std::scoped_lock lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    if (thread.joinable()) thread.join();
  }

  void watch();
  void look();

  const fs::path path;
  const std::chrono::milliseconds look_every;
  torch::Device device{torch::kCPU};
  mutable std::mutex mutex;
  std::condition_variable changed;
  checkpoint::SavedModel saved;
  const checkpoint::ModelDescription description;  ///< the same for all that come
  std::uint64_t seen;   ///< the last checkpoint that was looked at, of the watching thread
  std::string trouble;  ///< that has been logged, likewise
  bool stopping = false;
  std::thread thread;
};

void CheckpointWeights::Impl::watch() {
  std::unique_lock lock(mutex);
  while (!stopping) {
    changed.wait_for(lock, look_every);
    if (stopping) return;
    lock.unlock();
    try {
      look();
      trouble.clear();
    } catch (const std::exception& error) {
      // It may have been removed for a newer one just now: the next look tells.
      if (std::exchange(trouble, error.what()) != error.what()) {
        log(LogLevel::warning, "the weights stay what they are: {}", error.what());
      }
    }
    lock.lock();
  }
}

void CheckpointWeights::Impl::look() {
  if (checkpoint::last_save(path).sequence == seen) return;
  auto fresh = checkpoint::load_saved_model(path);
  if (fresh.sequence == seen) return;
  if (fresh.description != description) {
    throw Error(ErrorCode::InvalidArgument,
                fresh.path.string() + " holds another model than what is served; serve it anew");
  }
  fresh.model.to(device);
  seen = fresh.sequence;
  log(LogLevel::info, "the weights are those of {} now", fresh.path.string());
  const std::scoped_lock lock(mutex);
  saved = std::move(fresh);
}

CheckpointWeights::CheckpointWeights(const fs::path& path, std::chrono::milliseconds look_every)
    : impl_(std::make_unique<Impl>(path, look_every)) {}

CheckpointWeights::~CheckpointWeights() = default;

const checkpoint::ModelDescription& CheckpointWeights::description() const noexcept {
  return impl_->description;
}

void CheckpointWeights::move_to(const torch::Device& device) {
  impl_->device = device;
  impl_->saved.model.to(device);
  if (impl_->saved.path == impl_->path) return;  // no folder of others
  impl_->thread = std::thread([impl = impl_.get()] { impl->watch(); });
}

PredictionWeights CheckpointWeights::newest() {
  const std::scoped_lock lock(impl_->mutex);
  return {impl_->saved.model, {impl_->saved.step, impl_->saved.step}};
}

fs::path CheckpointWeights::origin() const {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->saved.path;
}

namespace {

namespace ps = parallel::server;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kToConnect{5};
/// Servers apply an update one after the other: a moment later they have all done so.
constexpr int kTries = 3;
constexpr int kRestPerPull = 9;

}  // namespace

JobWeights::JobWeights(const checkpoint::ModelDescription& description, ps::ShardPlan plan,
                       Options options, Version version)
    : plan_(std::move(plan)),
      options_(std::move(options)),
      version_at_coordinator_(std::move(version)),
      model_(checkpoint::make_described_model(description)) {}

JobWeights::~JobWeights() = default;

void JobWeights::connect() {
  client_ = std::make_unique<ps::Client>(options_(), plan_, model_.parameters(),
                                         Deadline::after(kToConnect));
}

void JobWeights::pull() {
  auto wanted = version_at_coordinator_();
  for (int i = 0; i < kTries; ++i) {
    client_->start_pull(wanted, parallel::server::Client::Values::exact);
    const auto oldest = client_->finish_pull();
    wanted = client_->newest_pulled();
    version_ = {static_cast<std::int64_t>(oldest), static_cast<std::int64_t>(wanted)};
    if (oldest == wanted) return;
  }
}

PredictionWeights JobWeights::newest() {
  const auto begin = Clock::now();
  const auto is_newest = [this] {
    return version_.oldest == static_cast<std::int64_t>(version_at_coordinator_());
  };
  if (client_ && (begin < rest_until_ || is_newest())) return {model_, version_};
  try {
    if (!client_) connect();
    pull();
  } catch (...) {
    client_.reset();  // some of the parameters may be newer than others: all are fetched next time
    throw;
  }
  const auto end = Clock::now();
  rest_until_ = end + kRestPerPull * (end - begin);
  return {model_, version_};
}

}  // namespace bimetal::predict
