#include "bimetal/parallel/data/parameter_check.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"
#include "bimetal/base/wire.h"
#include "bimetal/comm/call.h"
#include "bimetal/parallel/tensor_buffer.h"

namespace bimetal::parallel {

namespace {

// One line per tensor, in order: what must be equal everywhere, in the words of the error message.
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

}  // namespace bimetal::parallel
