#include "bimetal/parallel/data/bucket_exchange.h"

#include <fmt/format.h>

#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/parallel/tensor_buffer.h"

namespace bimetal::parallel {

namespace {

// How often a wait for the network looks whether the device has finished another copy.
constexpr std::chrono::microseconds poll_interval{50};

std::string bucket_name(std::size_t index) {
  return fmt::format("bucket {}", index);
}

}  // namespace

BucketExchange::BucketExchange(comm::Group group, std::chrono::milliseconds timeout,
                               std::shared_ptr<c10d::Island> island)
    : group_(std::move(group)), timeout_(timeout), island_(std::move(island)) {}

void BucketExchange::compress(comm::CompressedAllReduceOptions options,
                              std::vector<std::vector<comm::Matrix>> matrices) {
  compressed_.emplace(group_, std::move(options));
  matrices_ = std::move(matrices);
}

std::vector<comm::NamedValues> BucketExchange::error_feedback() {
  if (!compressed_) return {};
  return compressed_->whole_state(Deadline::after(timeout_));
}

bool BucketExchange::set_error_feedback(std::vector<comm::NamedValues> state, std::int64_t steps) {
  step_ = steps;
  if (state.empty()) return true;
  if (!compressed_) return false;
  std::map<std::string, std::size_t> sizes;
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    for (const char* part : {".residual", ".velocity"}) {
      sizes[bucket_name(i) + part] = compressed_count(i);
    }
  }
  for (const auto& [name, values] : state) {
    // A basis of another size is not used: compression starts from a new one.
    if (name.ends_with(".basis")) continue;
    const auto found = sizes.find(name);
    if (found == sizes.end() || found->second != values.size()) return false;
  }
  compressed_->set_whole_state(std::move(state));
  return true;
}

std::size_t BucketExchange::compressed_count(std::size_t index) const {
  const auto& matrices = matrices_[index];
  return std::accumulate(
      matrices.begin(), matrices.end(), std::size_t{0},
      [](std::size_t sum, const comm::Matrix& matrix) { return sum + matrix.count(); });
}

void BucketExchange::begin(std::size_t bucket_count) {
  if (compressed_) compressed_->set_step(step_++);
  transfers_ = std::vector<Transfer>(bucket_count);
  sent_ = 0;
  send_error_ = nullptr;
  when_sent_ = nullptr;
  span_.begin();
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
  const bool all_sent = sent_ == transfers_.size();
  if (const auto then = all_sent ? std::exchange(when_sent_, {}) : nullptr) then();
  transfers_[index].work.wait();
  span_.waited += blocked.seconds();
}

comm::Work BucketExchange::sum(std::size_t index, const torch::Tensor& flat) {
  const auto deadline = Deadline::after(timeout_);
  if (island_) return island_->all_reduce(flat, comm_dtype_of(flat), deadline);
  const auto whole = tensor_buffer(flat);
  if (!compressed_) return group_.all_reduce(whole, comm::ReduceOp::sum, deadline);
  const auto count = compressed_count(index);
  // It ends before the sum behind it does, and its failure is that one's, too.
  group_.all_reduce({static_cast<std::byte*>(whole.data) + count * comm::size_of(whole.dtype),
                     whole.count - count, whole.dtype},
                    comm::ReduceOp::sum, deadline);
  return compressed_->all_reduce(bucket_name(index), {whole.data, count, whole.dtype},
                                 comm::ReduceOp::sum, matrices_[index], deadline);
}

void BucketExchange::send(Transfer& transfer) try {
  transfer.work = sum(sent_, transfer.flat);
  transfer.work.on_done([keep = transfer.flat](const std::exception_ptr&) {});
  span_.watch(transfer.work);
} catch (...) {
  // Thrown through backward it would look like a failure of this rank's model.
  send_error_ = std::current_exception();
}

}  // namespace bimetal::parallel
