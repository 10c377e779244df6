#include "bimetal/train/micro_batch.h"

#include <algorithm>
#include <limits>

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
    const data::Batch& batch,
    const std::function<void(const data::Batch& piece, bool last)>& compute) const {
  const auto total = batch.y.size(0);
  const auto count = pieces(total);
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto end = total * (i + 1) / count;
    compute({batch.x.slice(0, begin, end), batch.y.slice(0, begin, end)}, i + 1 == count);
    begin = end;
  }
}

}  // namespace bimetal::train
