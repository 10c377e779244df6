#include "bimetal/train/compute.h"

#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/device/device.h"
#include "bimetal/train/out_of_memory.h"

namespace bimetal::train {
namespace {

constexpr std::int64_t kWholeShare = std::numeric_limits<std::int64_t>::max();

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

}  // namespace

MicroBatch::MicroBatch(std::int64_t configured, const torch::Device& device)
    : limit_(configured > 0    ? configured
             : device.is_cpu() ? kCpuDefault
                               : kWholeShare) {}

bool MicroBatch::halve(std::int64_t batch) {
  const auto largest = std::min(limit_, batch);
  if (largest <= kSmallest) return false;
  limit_ = std::max(kSmallest, largest / 2);
  return true;
}

std::int64_t MicroBatch::pieces(std::int64_t batch) const {
  return divide_up(batch, limit_);
}

void MicroBatch::for_each(
    const task::Values& batch,
    const std::function<void(const task::Values& piece, bool last)>& compute) const {
  const auto total = task::samples_of(batch);
  const auto count = pieces(total);
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto end = total * (i + 1) / count;
    compute(task::slice(batch, begin, end), i + 1 == count);
    begin = end;
  }
}

void Pieces::add(const torch::Tensor& loss_sum, bool last) {
  if (!loss_sum.defined() || loss_sum.numel() != 1) {
    throw Error(ErrorCode::InvalidArgument,
                "Task::loss_sum must give a single number, the sum over the batch");
  }
  backward_(loss_sum, last);
  sums_.push_back(loss_sum.detach());
}

double Pieces::loss_sum(const torch::Device& device) const {
  device::synchronize(device);
  double sum = 0;
  for (const auto& loss : sums_) sum += loss.item<double>();
  return sum;
}

Compute::Compute(const task::Task& task, task::Model model, const torch::Device& device,
                 std::int64_t micro_batch, task::BeforeUse before_use)
    : task_(task),
      model_(std::move(model)),
      device_(device),
      micro_batch_(micro_batch, device),
      before_use_(std::move(before_use)) {}

double Compute::run(const task::Values& share, const Backward& backward) const {
  Pieces pieces(backward);
  micro_batch_.for_each(share, [&](const task::Values& piece, bool last) {
    const auto outputs = task::run_units(model_, task_.inputs(piece), before_use_);
    pieces.add(task_.loss_sum(outputs, piece), last);
  });
  return pieces.loss_sum(device_);
}

Compute::Outcome Compute::try_run(std::int64_t samples, const std::function<task::Values()>& fetch,
                                  const Backward& backward) {
  bool fetched = false;
  Outcome outcome;
  outcome.error = without_memory_for(device_, [&] {
    const auto share = fetch();
    fetched = true;
    if (samples > 0) outcome.loss_sum = run(share, backward);
  });
  if (!outcome.error) return outcome;
  outcome.fit = fetched && micro_batch_.halve(samples) ? progress::Fit::try_smaller_pieces
                                                       : progress::Fit::too_large;
  return outcome;
}

}  // namespace bimetal::train
