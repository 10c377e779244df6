#include "bimetal/parallel/exchange_span.h"

#include <atomic>
#include <chrono>
#include <exception>

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

}  // namespace bimetal::parallel
