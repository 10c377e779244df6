#include "bimetal/parallel/parameter_store.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/parallel/data/same_model.h"

namespace bimetal::parallel {

using Clock = Deadline::Clock;

namespace {

double seconds_of(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

// Written by the group's threads. Shared with them, since they may report an end after wait()
// returned.
struct ExchangeSpan::Ends {
  bool any = false;  ///< the owner's
  std::atomic<int> running = 0;
  std::atomic<Clock::rep> last = 0;
};

ExchangeSpan::ExchangeSpan() : ends_(std::make_shared<Ends>()) {}

void ExchangeSpan::begin() {
  waited = 0;
  ends_ = std::make_shared<Ends>();
}

void ExchangeSpan::watch(const comm::Work& work) {
  if (!ends_->any) first_sent_ = Clock::now();
  ends_->any = true;
  ++ends_->running;
  work.on_done([ends = ends_](const std::exception_ptr&) {
    ends->last = Clock::now().time_since_epoch().count();
    --ends->running;
  });
}

double ExchangeSpan::seconds() const noexcept {
  if (!ends_->any) return 0;
  if (ends_->running > 0) return seconds_of(Clock::now() - first_sent_);
  return seconds_of(Clock::duration(ends_->last) - first_sent_.time_since_epoch());
}

ParameterStore::ParameterStore(const task::ModelState& model, comm::Group group,
                               std::size_t message_bytes, std::chrono::milliseconds timeout)
    : group_(std::move(group)),
      buffers_(task::tensors_of(model.buffers)),
      message_bytes_(message_bytes),
      timeout_(timeout) {
  if (!group_) throw Error(ErrorCode::InvalidArgument, "data parallelism needs a group");
  check_same_on_all_ranks(model, group_, timeout_);
  broadcast_buffers(0);
}

void ParameterStore::begin_step(std::int64_t weight, double scale) {
  if (weight <= 0) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("the weight of a step's samples must be positive, not {}", weight));
  }
  if (phase_ != Phase::idle) {
    throw Error(ErrorCode::InvalidArgument,
                "begin_step: the last step has not been ended with finish_step");
  }
  phase_ = Phase::open;
  weight_ = weight;
  scale_ = scale;
  done_ = 0;
  begin();
}

void ParameterStore::require_open() const {
  if (phase_ == Phase::open) return;
  throw Error(ErrorCode::InvalidArgument,
              phase_ == Phase::idle ? "backward: no step was begun with begin_step"
                                    : "backward: this step's backward_last has already been run");
}

// part/W enters as the gradient of the loss itself: backward is linear in it, so this is the
// weighted loss's gradient without another pass over anything.
void ParameterStore::add(const torch::Tensor& loss, std::int64_t part, bool last) {
  require_open();
  if (!loss.defined() || loss.numel() != 1) {
    throw Error(ErrorCode::InvalidArgument, "backward: the loss must be a single number");
  }
  if (part <= 0 || part > weight_ - done_) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("backward: a part of {} after {} in a global batch of weight {}", part,
                            done_, weight_));
  }
  done_ += part;
  if (last) phase_ = Phase::reducing;
  const double counts = scale_ * static_cast<double>(part) / static_cast<double>(weight_);
  pass([&] { loss.backward(torch::full_like(loss, counts)); }, last);
}

void ParameterStore::run_pass(const std::function<void()>& backward, bool last) {
  if (!traits_.takes_passes) {
    throw Error(ErrorCode::Unsupported,
                "passes that somebody else runs, unless they are a stage's, do not say when "
                "parameters are used, as level 3 must know, nor how many there are, as level 2 "
                "must: take zero.level 0 or 1");
  }
  require_open();
  if (last) phase_ = Phase::reducing;
  pass(backward, last);
}

void ParameterStore::finish_step(const std::function<void()>& before_sums,
                                 const std::function<void()>& when_sent) {
  if (phase_ == Phase::idle) {
    throw Error(ErrorCode::InvalidArgument, "finish_step: no step was begun with begin_step");
  }
  phase_ = Phase::idle;
  finish(
      before_sums ? before_sums : [] {}, when_sent ? when_sent : [] {});
}

void ParameterStore::broadcast_buffers(int root) {
  broadcast_tensors(buffers_, root, group_, message_bytes_, timeout_);
}

}  // namespace bimetal::parallel
