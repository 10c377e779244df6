#include "bimetal/comm/group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "bimetal/comm/group/arguments.h"
#include "bimetal/comm/group/group_impl.h"

namespace bimetal::comm {
namespace {

// Lists of ranks, filled up with -1.
Failure different_lists(int rank, std::span<const std::int64_t> list, int other_rank,
                        std::span<const std::int64_t> other_list) {
  const auto text = [](std::span<const std::int64_t> ranks) {
    return fmt::format("{}", fmt::join(ranks.begin(), std::ranges::find(ranks, -1), ", "));
  };
  return {ErrorCode::CallMismatch,
          fmt::format("rank {} asked for a subgroup of ranks [{}], but rank {} for one of [{}]",
                      rank, text(list), other_rank, text(other_list)),
          other_rank};
}

void check_carrier(const net::Mesh& mesh, Transport asked) {
  const bool either = asked == Transport::automatic || asked == Transport::shm;
  if (either || mesh.size() == 1 || mesh.carrier() == to_string(asked)) return;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("transport '{}' was asked for, but these ranks have met over {}: {}",
                          to_string(asked), mesh.carrier(),
                          asked == Transport::mpi
                              ? "start them by mpirun, without RANK in their environment"
                              : "start them by another launcher than mpirun, or ask for mpi"));
}

}  // namespace

Group::Impl& Group::impl() const {
  if (!impl_) {
    throw Error(ErrorCode::InvalidArgument,
                "this group handle is empty: the rank is not a member, or no group was made");
  }
  return *impl_;
}

int Group::rank() const {
  return impl().core().rank();
}
int Group::size() const {
  return impl().core().size();
}

Group Group::subgroup(const std::vector<int>& ranks) {
  auto& group = impl();
  check_subgroup(ranks, size());
  // Everyone shows everyone its list, so that all see the same difference if there is one. The
  // first member's row carries the new group's id as well.
  const auto columns = static_cast<std::size_t>(size()) + 1;
  std::vector<std::int64_t> mine(columns, -1);
  std::ranges::copy(ranks, mine.begin());
  if (ranks.front() == rank()) mine.back() = group.fabric()->new_group_id();
  std::vector<std::int64_t> all(columns * static_cast<std::size_t>(size()));
  all_gather(buffer(mine), buffer(all)).wait();
  const auto row = [&](int of) {
    return std::span(all).subspan(static_cast<std::size_t>(of) * columns, columns);
  };
  const auto list = [&](int of) { return row(of).first(columns - 1); };
  for (int other = 1; other < size(); ++other) {
    if (std::ranges::equal(list(0), list(other))) continue;
    group.core().fail(different_lists(group.core().world_rank(0), list(0),
                                      group.core().world_rank(other), list(other)),
                      false);
    throw group.core().failure()->to_error();
  }
  if (std::ranges::find(ranks, rank()) == ranks.end()) return Group();
  return subgroup(ranks, static_cast<std::uint32_t>(row(ranks.front()).back()));
}

Group Group::subgroup(const std::vector<int>& ranks, std::uint32_t id,
                      std::optional<std::chrono::milliseconds> timeout) {
  auto& group = impl();
  check_subgroup(ranks, size());
  if (std::ranges::find(ranks, rank()) == ranks.end()) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("rank {} is not a member of the subgroup [{}]", rank(),
                            fmt::join(ranks, ", ")));
  }
  std::vector<int> members;
  for (const int member : ranks) members.push_back(group.core().world_rank(member));
  auto options = group.options();
  options.timeout = timeout.value_or(options.timeout);
  auto made = std::make_shared<Impl>(group.fabric(), id, std::move(members), std::move(options));
  made->find_shared_memory();
  return Group(std::move(made));
}

std::uint32_t Group::new_subgroup_id() {
  return impl().fabric()->new_group_id();
}

const Topology& Group::topology() const {
  return impl().topology();
}

Transport Group::transport() const {
  return impl().transport();
}

GroupMemory Group::allocate(std::size_t bytes) {
  return impl().allocate(bytes);
}

void Group::abort(const std::string& reason) {
  const int self = impl().core().world_rank(rank());
  impl().core().fail({ErrorCode::Aborted, reason, self}, true);
}

std::exception_ptr Group::error() const {
  const auto failure = impl().core().failure();
  return failure ? failure->to_exception() : nullptr;
}

void Group::wait_told(Deadline deadline) {
  impl().core().wait_told(deadline);
}

void Group::close(Deadline deadline) {
  impl().close(deadline);
}

std::uint64_t Group::bytes_sent() const {
  return impl().fabric()->mesh().bytes_sent();
}

std::string Group::flight_recorder() const {
  return impl().fabric()->recorder().json();
}

Group make_group(std::unique_ptr<net::Mesh> mesh, GroupOptions options) {
  options.transport = transport_for(options.transport);
  options.algorithm = algorithm_for(options.algorithm);
  check_carrier(*mesh, options.transport);
  options.island = island_for(std::move(options.island));
  std::vector<int> everyone(mesh->size());
  std::iota(everyone.begin(), everyone.end(), 0);
  auto fabric = std::make_shared<Fabric>(std::move(mesh), options.flight_recorder, options.epoch);
  auto world = std::make_shared<Group::Impl>(std::move(fabric), 0, std::move(everyone), options);
  world->find_shared_memory();
  return Group(std::move(world));
}

}  // namespace bimetal::comm
