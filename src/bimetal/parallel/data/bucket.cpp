#include "bimetal/parallel/data/bucket.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "bimetal/base/deadline.h"
#include "bimetal/parallel/group_room.h"

namespace bimetal::parallel {
namespace {

// The bucket of one type that still takes parameters, and when it is full.
struct OpenBucket {
  BucketPlan plan;
  std::size_t bytes = 0;
  std::size_t capacity = 0;

  void add(std::size_t parameter, const ParameterSize& size) {
    plan.dtype = size.dtype;
    plan.slots.push_back({parameter, plan.count, size.count});
    plan.count += size.count;
    bytes += size.bytes();
  }
};

// How often a wait for the network looks whether the device has finished another copy.
constexpr std::chrono::microseconds poll_interval{50};

std::string bucket_name(std::size_t index) {
  return fmt::format("bucket {}", index);
}

}  // namespace

std::size_t ParameterSize::bytes() const {
  return static_cast<std::size_t>(count) * c10::elementSize(dtype);
}

std::vector<BucketPlan> plan_buckets(std::span<const ParameterSize> parameters,
                                     std::size_t first_bytes, std::size_t later_bytes) {
  std::vector<BucketPlan> closed;
  std::map<torch::ScalarType, OpenBucket> open;
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const auto [entry, is_first] = open.try_emplace(parameters[i].dtype);
    OpenBucket& bucket = entry->second;
    if (is_first) bucket.capacity = first_bytes;
    bucket.add(i, parameters[i]);
    if (bucket.bytes >= bucket.capacity) {
      closed.push_back(std::move(bucket.plan));
      bucket = OpenBucket();
      bucket.capacity = later_bytes;
    }
  }
  for (auto& [dtype, bucket] : open) {
    if (!bucket.plan.slots.empty()) closed.push_back(std::move(bucket.plan));
  }
  // A bucket is full when its last slot is: the one whose parameter was registered first.
  std::ranges::sort(closed, std::ranges::greater{},
                    [](const BucketPlan& plan) { return plan.slots.back().parameter; });
  return closed;
}

Bucket::Bucket(BucketPlan plan, const std::vector<torch::Tensor>& parameters, torch::Tensor flat)
    : plan_(std::move(plan)), flat_(std::move(flat)) {
  used_ = flat_.narrow(0, plan_.count, static_cast<std::int64_t>(plan_.slots.size()));
  used_here_.resize(plan_.slots.size());
  views_.reserve(plan_.slots.size());
  for (const auto& slot : plan_.slots) {
    // Detached: a gradient may be a view of memory, but autograd must not take it for a view of a
    // tensor, whose in-place detach() it would refuse.
    views_.push_back(
        flat_.narrow(0, slot.offset, slot.count).view(parameters[slot.parameter].sizes()).detach());
  }
}

std::vector<comm::Matrix> Bucket::matrices() const {
  std::vector<comm::Matrix> matrices;
  for (const auto& view : views_) {
    const auto count = static_cast<std::size_t>(view.numel());
    if (count == 0) continue;
    const auto rows = view.dim() > 1 ? static_cast<std::size_t>(view.size(0)) : 1;
    matrices.push_back({rows, count / rows});
  }
  return matrices;
}

bool Bucket::all_used_here() const {
  return std::ranges::all_of(used_here_, [](double used) { return used != 0; });
}

void Bucket::close() {
  if (all_used_here()) {
    used_.fill_(1);  // without a copy to a device
  } else {
    used_.copy_(torch::from_blob(used_here_.data(), used_.sizes(), torch::kFloat64));
  }
}

std::vector<bool> Bucket::used_by_any() const {
  if (all_used_here()) return std::vector<bool>(used_here_.size(), true);
  const torch::Tensor ranks = used_.to(torch::kCPU, torch::kFloat64);
  const std::span counts(ranks.const_data_ptr<double>(), plan_.slots.size());
  std::vector<bool> used(counts.size());
  std::transform(counts.begin(), counts.end(), used.begin(),
                 [](double count) { return count > 0; });
  return used;
}

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
