#include "bimetal/parallel/group_room.h"

#include <fmt/format.h>
#include <torch/csrc/api/include/torch/types.h>

#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "bimetal/base/error.h"
#include "bimetal/comm/group.h"

namespace bimetal::parallel {
namespace {

constexpr std::size_t kCacheLine = 64;

std::size_t whole_lines(std::size_t bytes) {
  return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

}  // namespace

/// The places in use.
class GroupRoom::Places {
 public:
  explicit Places(comm::GroupMemory memory) : memory_(std::move(memory)) {}

  /// The first gap that is large enough.
  std::optional<std::size_t> take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::size_t begin = 0;
    for (const auto& [taken, end] : ends_) {
      if (begin + bytes <= taken) break;
      begin = end;
    }
    if (begin + bytes > memory_.bytes().size()) return std::nullopt;
    ends_.emplace(begin, begin + bytes);
    return begin;
  }

  void give_back(std::size_t begin) noexcept {
    const std::lock_guard lock(mutex_);
    ends_.erase(begin);
  }

  std::byte* at(std::size_t begin) const { return memory_.bytes().data() + begin; }

 private:
  comm::GroupMemory memory_;
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> ends_;  ///< of memory in use, by its beginning
};

GroupRoom::GroupRoom(comm::Group& group, std::size_t bytes, bool here) {
  if (bytes == 0 || group.size() == 1 || group.transport() != comm::Transport::shm) return;
  std::int32_t everywhere[] = {here ? 1 : 0};
  group.all_reduce(comm::buffer(std::span(everywhere)), comm::ReduceOp::min).wait();
  if (everywhere[0] == 0) return;
  auto memory = group.allocate(bytes);
  if (memory.shared()) places_ = std::make_shared<Places>(std::move(memory));
}

std::size_t GroupRoom::bytes_for(std::span<const std::size_t> tensors) {
  std::size_t sum = 0;
  for (const auto bytes : tensors) sum += whole_lines(bytes);
  return sum;
}

torch::Tensor GroupRoom::take(std::int64_t count, torch::ScalarType dtype) const {
  const auto bytes = whole_lines(static_cast<std::size_t>(count) * c10::elementSize(dtype));
  const auto place = places_ && bytes > 0 ? places_->take(bytes) : std::nullopt;
  if (!place) return torch::empty({count}, torch::dtype(dtype));
  return torch::from_blob(
      places_->at(*place), {count},
      [places = places_, begin = *place](void*) { places->give_back(begin); }, torch::dtype(dtype));
}

std::optional<comm::DType> comm_dtype(torch::ScalarType dtype) noexcept {
  switch (dtype) {
    case torch::kFloat32: return comm::DType::float32;
    case torch::kFloat64: return comm::DType::float64;
    case torch::kFloat16: return comm::DType::float16;
    case torch::kBFloat16: return comm::DType::bfloat16;
    case torch::kInt8: return comm::DType::int8;
    case torch::kInt16: return comm::DType::int16;
    case torch::kInt32: return comm::DType::int32;
    case torch::kInt64: return comm::DType::int64;
    case torch::kUInt8: return comm::DType::uint8;
    default: return std::nullopt;
  }
}

comm::DType comm_dtype_of(const torch::Tensor& tensor) {
  if (const auto dtype = comm_dtype(tensor.scalar_type())) return *dtype;
  throw Error(ErrorCode::Unsupported, fmt::format("tensors of type {} cannot be exchanged",
                                                  c10::toString(tensor.scalar_type())));
}

comm::Buffer tensor_buffer(const torch::Tensor& tensor) {
  if (!tensor.device().is_cpu() || !tensor.is_contiguous()) {
    throw Error(ErrorCode::InvalidArgument,
                "only contiguous CPU tensors can be handed to the network; copy it first");
  }
  const auto dtype = comm_dtype_of(tensor);
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), dtype};
}

}  // namespace bimetal::parallel
