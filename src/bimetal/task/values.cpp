#include "bimetal/task/values.h"

namespace bimetal::task {

std::int64_t samples_of(const Values& batch) {
  return batch.empty() ? 0 : batch.front().size(0);
}

Values slice(const Values& batch, std::int64_t begin, std::int64_t end) {
  Values piece;
  piece.reserve(batch.size());
  for (const auto& values : batch) piece.push_back(values.slice(0, begin, end));
  return piece;
}

Values to_device(const Values& values, const torch::Device& device, bool non_blocking) {
  Values moved;
  moved.reserve(values.size());
  for (const auto& value : values) moved.push_back(value.to(device, non_blocking));
  return moved;
}

}  // namespace bimetal::task
