#include "bimetal/predict/job_weights.h"

#include <utility>

namespace bimetal::predict {
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
