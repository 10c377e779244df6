#include "bimetal/parallel/data/bucket_exchange.h"

#include <atomic>
#include <utility>

#include "bimetal/base/stopwatch.h"
#include "bimetal/parallel/tensor_buffer.h"

namespace bimetal::parallel {

namespace {

// How often a wait for the network looks whether the device has finished another copy.
constexpr std::chrono::microseconds poll_interval{50};

double seconds(Deadline::Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

// Written by the group's thread. Shared with it, since it may report an end after wait() returned.
struct BucketExchange::Ends {
  std::atomic<int> running = 0;
  std::atomic<Clock::rep> last = 0;
};

BucketExchange::BucketExchange(comm::Group group, std::chrono::milliseconds timeout)
    : group_(std::move(group)), timeout_(timeout), ends_(std::make_shared<Ends>()) {}

void BucketExchange::begin(std::size_t bucket_count) {
  transfers_ = std::vector<Transfer>(bucket_count);
  sent_ = 0;
  send_error_ = nullptr;
  ends_ = std::make_shared<Ends>();
  wait_seconds_ = 0;
}

void BucketExchange::offer(std::size_t index, torch::Tensor flat, device::CopyMark copied) {
  transfers_[index].flat = std::move(flat);
  transfers_[index].copied = std::move(copied);
}

void BucketExchange::send_ready() {
  for (; !send_error_ && sent_ < transfers_.size(); ++sent_) {
    Transfer& next = transfers_[sent_];
    if (!next.flat.defined() || !next.copied.passed()) return;
    send(next);
  }
}

void BucketExchange::wait(std::size_t index) {
  const Stopwatch blocked;
  const auto deadline = Deadline::after(timeout_);
  while (!send_error_ && sent_ < transfers_.size()) {
    if (sent_ <= index) {
      transfers_[sent_].copied.wait(deadline);
    } else if (transfers_[index].work.wait_until(Deadline::after(poll_interval))) {
      break;
    }
    send_ready();
  }
  if (send_error_) std::rethrow_exception(send_error_);
  transfers_[index].work.wait();
  wait_seconds_ += blocked.seconds();
}

double BucketExchange::communicate_seconds() const noexcept {
  if (sent_ == 0) return 0;
  if (ends_->running > 0) return seconds(Clock::now() - first_sent_);
  return seconds(Clock::duration(ends_->last) - first_sent_.time_since_epoch());
}

void BucketExchange::send(Transfer& transfer) try {
  if (sent_ == 0) first_sent_ = Clock::now();
  transfer.work = group_.all_reduce(tensor_buffer(transfer.flat), comm::ReduceOp::sum,
                                    Deadline::after(timeout_));
  ++ends_->running;
  transfer.work.on_done([ends = ends_, keep = transfer.flat](const std::exception_ptr&) {
    ends->last = Clock::now().time_since_epoch().count();
    --ends->running;
  });
} catch (...) {
  // Thrown through backward it would look like a failure of this rank's model.
  send_error_ = std::current_exception();
}

}  // namespace bimetal::parallel
