#include "bimetal/parallel/data/same_model.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/api/include/torch/types.h>
#include <torch/csrc/api/include/torch/utils.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/wire.h"
#include "bimetal/comm/call.h"
#include "bimetal/parallel/group_room.h"

namespace bimetal::parallel {
namespace {

// Every element type is aligned when it starts at a multiple of this.
constexpr std::size_t alignment = 16;

std::size_t padded_bytes(const torch::Tensor& tensor) {
  return (tensor.nbytes() + alignment - 1) / alignment * alignment;
}

// The number of leading tensors that make up the next message: at least one.
std::size_t message_length(std::span<const torch::Tensor> tensors, std::size_t message_bytes) {
  std::size_t count = 0;
  std::size_t bytes = 0;
  do {
    bytes += padded_bytes(tensors[count++]);
  } while (count < tensors.size() && bytes < message_bytes);
  return count;
}

void pack(std::span<const torch::Tensor> tensors, std::byte* message) {
  for (const auto& tensor : tensors) {
    const auto values = tensor.detach().to(torch::kCPU).contiguous();
    if (values.nbytes() > 0) std::memcpy(message, values.const_data_ptr(), values.nbytes());
    message += padded_bytes(tensor);
  }
}

void unpack(std::byte* message, std::span<const torch::Tensor> tensors) {
  const torch::NoGradGuard no_grad;
  for (torch::Tensor tensor : tensors) {
    tensor.copy_(torch::from_blob(message, tensor.sizes(), tensor.scalar_type()));
    message += padded_bytes(tensor);
  }
}

// One line per tensor, in order: the facts that must be equal everywhere, in the words of the error
// message.
using Description = std::vector<std::string>;

std::string type_name(torch::ScalarType dtype) {
  if (const auto known = comm_dtype(dtype)) return std::string(comm::to_string(*known));
  return c10::toString(dtype);
}

std::string describe(std::string_view kind, const task::NamedTensor& item) {
  const auto& [name, tensor] = item;
  return fmt::format("{} '{}' {} [{}]", kind, name, type_name(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "));
}

Description describe(const task::ModelState& state) {
  Description lines;
  for (const auto& item : state.parameters) {
    lines.push_back(describe(item.tensor.requires_grad() ? "parameter" : "frozen parameter", item));
  }
  for (const auto& item : state.buffers) lines.push_back(describe("buffer", item));
  return lines;
}

std::vector<std::byte> encode(const Description& description) {
  WireWriter writer;
  for (const auto& line : description) writer.string(line);
  return std::move(writer).take();
}

Description decode(std::span<const std::byte> bytes) {
  WireReader reader(bytes);
  Description lines;
  while (reader.remaining() > 0) lines.push_back(reader.string());
  return lines;
}

// Digest and length of a rank's encoded description; both travel as two int64.
struct Summary {
  std::int64_t digest = 0;
  std::int64_t bytes = 0;
  bool operator==(const Summary&) const = default;
};

std::vector<Summary> gather_summaries(const Summary& mine, comm::Group group, Deadline deadline) {
  std::vector<Summary> all(static_cast<std::size_t>(group.size()));
  group
      .all_gather({&mine, 2, comm::DType::int64}, {all.data(), 2 * all.size(), comm::DType::int64},
                  deadline)
      .wait();
  return all;
}

// One rank's description, on every rank, so that all of them throw the same error.
Description description_of(int rank, std::vector<std::byte> mine, const Summary& summary,
                           comm::Group group, Deadline deadline) {
  mine.resize(static_cast<std::size_t>(summary.bytes));
  group.broadcast({mine.data(), mine.size(), comm::DType::uint8}, rank, deadline).wait();
  return decode(mine);
}

std::string first_difference(const Description& zero, const Description& other, int other_rank) {
  const auto [a, b] = std::ranges::mismatch(zero, other);
  const auto text = [](auto it, const Description& lines) {
    return it == lines.end() ? std::string("nothing more") : *it;
  };
  return fmt::format(
      "rank 0 and rank {} hold different models: tensor {} of {} on rank 0 is {}, tensor {} of {} "
      "on rank {} is {}; build the same module on every rank",
      other_rank, a - zero.begin() + 1, zero.size(), text(a, zero), b - other.begin() + 1,
      other.size(), other_rank, text(b, other));
}

}  // namespace

void broadcast_tensors(std::span<const torch::Tensor> tensors, int root, comm::Group group,
                       std::size_t message_bytes, std::chrono::milliseconds timeout) {
  while (!tensors.empty()) {
    const auto batch = tensors.first(message_length(tensors, message_bytes));
    tensors = tensors.subspan(batch.size());
    std::size_t bytes = 0;
    for (const auto& tensor : batch) bytes += padded_bytes(tensor);
    if (bytes == 0) continue;

    std::vector<std::byte> message(bytes);
    if (group.rank() == root) pack(batch, message.data());
    group.broadcast({message.data(), bytes, comm::DType::uint8}, root, Deadline::after(timeout))
        .wait();
    if (group.rank() != root) unpack(message.data(), batch);
  }
}

void broadcast_model(const task::ModelState& model, int root, const comm::Group& group,
                     std::size_t message_bytes, std::chrono::milliseconds timeout) {
  for (const auto* tensors : {&model.parameters, &model.buffers}) {
    broadcast_tensors(task::tensors_of(*tensors), root, group, message_bytes, timeout);
  }
}

void check_same_on_all_ranks(const task::ModelState& state, comm::Group group,
                             std::chrono::milliseconds timeout) {
  const auto deadline = Deadline::after(timeout);
  const auto mine = encode(describe(state));
  const Summary summary{static_cast<std::int64_t>(comm::checksum_of(mine)),
                        static_cast<std::int64_t>(mine.size())};
  const auto all = gather_summaries(summary, group, deadline);
  const auto differing = std::ranges::find_if(all, [&](const Summary& s) { return s != all[0]; });
  if (differing == all.end()) return;

  const int other = static_cast<int>(differing - all.begin());
  const auto on_zero = description_of(0, mine, all[0], group, deadline);
  const auto on_other = description_of(other, mine, *differing, group, deadline);
  throw Error(ErrorCode::CallMismatch, first_difference(on_zero, on_other, other), other);
}

std::optional<device::LateNumbers> numbers_of(std::span<const task::BatchStatistics> statistics,
                                              const comm::Group& group) {
  if (statistics.empty() || group.size() == 1) return std::nullopt;
  std::vector<torch::Tensor> sums;
  for (const auto& one : statistics) sums.push_back(one.sums);
  return device::LateNumbers(sums);
}

void sum_over_ranks(std::span<const task::BatchStatistics> statistics,
                    const std::optional<device::LateNumbers>& here, comm::Group group,
                    std::chrono::milliseconds timeout) {
  if (!here) return;
  const torch::NoGradGuard no_grad;
  auto all = here->take(Deadline::after(timeout));
  group.all_reduce(comm::buffer(std::span(all)), comm::ReduceOp::sum, Deadline::after(timeout))
      .wait();
  const auto& like = statistics.front().sums;
  const auto count = static_cast<std::int64_t>(all.size());
  const auto host = device::unset_host_buffer(count, like.scalar_type(), like.device());
  host.copy_(torch::from_blob(all.data(), {count}, torch::kFloat64));
  const auto back = host.to(like.device(), /*non_blocking=*/true);
  std::int64_t begin = 0;
  for (const auto& one : statistics) {
    auto target = one.sums;
    target.copy_(back.narrow(0, begin, target.numel()));
    begin += target.numel();
  }
}

void discard(std::span<const task::BatchStatistics> statistics) {
  for (const auto& one : statistics) {
    auto sums = one.sums;
    sums.zero_();
  }
}

}  // namespace bimetal::parallel
