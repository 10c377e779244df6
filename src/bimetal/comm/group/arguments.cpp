#include "bimetal/comm/group/arguments.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "bimetal/base/error.h"

namespace bimetal::comm {
namespace {

constexpr std::size_t kMaxBytes = std::numeric_limits<std::ptrdiff_t>::max();

template <typename... Args>
[[noreturn]] void reject(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorCode::InvalidArgument, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace

void check_buffer(const ConstBuffer& buffer, std::string_view what) {
  const std::size_t size = size_of(buffer.dtype);
  if (size == 0)
    reject("{} has an unknown element type ({})", what, static_cast<int>(buffer.dtype));
  if (buffer.count > kMaxBytes / size) {
    reject("{} has {} elements, more than memory can hold", what, buffer.count);
  }
  if (buffer.count > 0 && buffer.data == nullptr) {
    reject("{} has {} elements but no memory (null pointer)", what, buffer.count);
  }
}

void check_reduce_op(ReduceOp op) {
  if (op < ReduceOp::sum || op > ReduceOp::product) {
    reject("unknown reduction ({})", static_cast<int>(op));
  }
}

void check_rank(int rank, int size, std::string_view what) {
  if (rank < 0 || rank >= size) {
    reject("{} is rank {}, but the group has ranks 0 to {}", what, rank, size - 1);
  }
}

void check_peer(int peer, int own, int size) {
  check_rank(peer, size, "peer");
  if (peer == own) reject("rank {} can't exchange messages with itself", own);
}

namespace {

void check_alike(const ConstBuffer& whole, std::string_view whole_name, const ConstBuffer& part,
                 std::string_view part_name) {
  check_buffer(whole, whole_name);
  check_buffer(part, part_name);
  if (whole.dtype != part.dtype) {
    reject("{} is {}, but {} is {}", whole_name, to_string(whole.dtype), part_name,
           to_string(part.dtype));
  }
}

}  // namespace

void check_whole_and_part(const ConstBuffer& whole, std::string_view whole_name,
                          const ConstBuffer& part, std::string_view part_name, int size) {
  check_alike(whole, whole_name, part, part_name);
  if (whole.count % size != 0 || whole.count / size != part.count) {
    reject("{} has {} elements, but a group of {} with {} of {} needs {} × {}", whole_name,
           whole.count, size, part_name, part.count, size, part.count);
  }
}

void check_counts(std::span<const std::size_t> counts, const ConstBuffer& buffer,
                  std::string_view what, int size) {
  check_buffer(buffer, what);
  if (counts.size() != static_cast<std::size_t>(size)) {
    reject("{} counts for {} ranks were given, but the group has {}", what, counts.size(), size);
  }
  std::size_t left = buffer.count;
  for (const std::size_t count : counts) {
    if (count > left) reject("{} counts exceed the buffer's {} elements", what, buffer.count);
    left -= count;
  }
  if (left > 0) {
    reject("{} counts add up to {}, but the buffer has {} elements", what, buffer.count - left,
           buffer.count);
  }
}

void check_whole_and_own(std::span<const std::size_t> counts, const ConstBuffer& whole,
                         std::string_view whole_name, const ConstBuffer& own,
                         std::string_view own_name, int rank, int size) {
  check_alike(whole, whole_name, own, own_name);
  check_counts(counts, whole, whole_name, size);
  if (counts[static_cast<std::size_t>(rank)] != own.count) {
    reject("{} has {} elements, but rank {} of these counts has {}", own_name, own.count, rank,
           counts[static_cast<std::size_t>(rank)]);
  }
}

void check_subgroup(const std::vector<int>& ranks, int size) {
  if (ranks.empty()) reject("a subgroup needs at least one rank");
  std::set<int> seen;
  for (const int rank : ranks) {
    check_rank(rank, size, "a member of the subgroup");
    if (!seen.insert(rank).second) reject("rank {} is named twice in a subgroup", rank);
  }
}

}  // namespace bimetal::comm
