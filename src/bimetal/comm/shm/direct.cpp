#include <array>
#include <cstring>
#include <optional>

#include "bimetal/base/error.h"
#include "bimetal/comm/reduce/reduce_kernels.h"
#include "bimetal/comm/shm/collectives.h"
#include "bimetal/comm/shm/team.h"

namespace bimetal::comm {
namespace {

/// One call of one rank.
class InMemoryOfAll {
 public:
  InMemoryOfAll(ShmTeam& team, const Call& call, const Operands& operands)
      : call_(call),
        operands_(operands),
        ranks_(static_cast<std::size_t>(team.size())),
        own_(static_cast<std::size_t>(team.rank())) {}

  /// Finds each rank's data. False if they are not in `arena` all of them.
  bool find(const Arena& arena, const ShmTeam& team);

  void run();

 private:
  void all_reduce();
  void reduce_scatter();
  void all_gather();

  /// How much of `rank`'s data others reach.
  std::size_t bytes_of(std::size_t rank) const;
  /// Everybody's data from byte `begin` on, reduced into the targets.
  void reduce(std::size_t begin, std::size_t bytes, std::span<std::byte* const> targets) const;

  const Call& call_;
  const Operands& operands_;
  const std::size_t ranks_, own_;
  std::array<std::byte*, kMaxTeam> places_{};
};

std::size_t InMemoryOfAll::bytes_of(std::size_t rank) const {
  switch (call_.operation) {
    case Operation::all_reduce: return operands_.output.size();
    case Operation::reduce_scatter: return operands_.input.size();
    default: return Parts(call_, static_cast<int>(ranks_)).ranges[rank].bytes;
  }
}

bool InMemoryOfAll::find(const Arena& arena, const ShmTeam& team) {
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    const auto posted = team.posted_place(static_cast<int>(rank));
    const auto memory = arena.of(static_cast<int>(rank));
    if (!posted || posted->arena != arena.number()) return false;
    if (posted->offset > memory.size() || bytes_of(rank) > memory.size() - posted->offset) {
      return false;  // no rank of ours says that
    }
    places_[rank] = memory.data() + posted->offset;
  }
  return true;
}

void InMemoryOfAll::run() {
  switch (call_.operation) {
    case Operation::all_reduce: return all_reduce();
    case Operation::reduce_scatter: return reduce_scatter();
    case Operation::all_gather: return all_gather();
    default: throw Error(ErrorCode::Internal, "an operation that is not done in place");
  }
}

void InMemoryOfAll::reduce(std::size_t begin, std::size_t bytes,
                           std::span<std::byte* const> targets) const {
  std::array<const std::byte*, kMaxTeam> sources;
  for (std::size_t rank = 0; rank < ranks_; ++rank) sources[rank] = places_[rank] + begin;
  reduce_across(std::span(sources).first(ranks_), targets, bytes / size_of(call_.dtype),
                call_.dtype, *call_.reduce_op);
}

void InMemoryOfAll::all_reduce() {
  const Range piece =
      piece_of(operands_.output.size(), static_cast<int>(own_), static_cast<int>(ranks_));
  std::array<std::byte*, kMaxTeam> targets;
  for (std::size_t rank = 0; rank < ranks_; ++rank) targets[rank] = places_[rank] + piece.begin;
  reduce(piece.begin, piece.bytes, std::span(targets).first(ranks_));
}

// Others do not read this rank's part, so the sum may be there.
void InMemoryOfAll::reduce_scatter() {
  const Range part = Parts(call_, static_cast<int>(ranks_)).ranges[own_];
  std::byte* const target = operands_.output.data();
  if (part.bytes > 0) reduce(part.begin, part.bytes, {&target, 1});
}

void InMemoryOfAll::all_gather() {
  const Parts parts(call_, static_cast<int>(ranks_));
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    const Range part = parts.ranges[rank];
    std::byte* const place = operands_.output.data() + part.begin;
    if (part.bytes > 0 && place != places_[rank]) std::memmove(place, places_[rank], part.bytes);
  }
}

}  // namespace

bool others_reach(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::reduce_scatter ||
         operation == Operation::all_gather;
}

std::span<const std::byte> reached_by_others(const Call& call, const Operands& operands) {
  if (call.operation == Operation::all_reduce) return operands.output;
  return operands.input;
}

bool run_in_place(ShmTeam& team, const Call& call, const Operands& operands,
                  const std::shared_ptr<const Arena>& arena, WaitGuard& guard) {
  std::optional<ShmTeam::Place> own;
  if (arena) {
    const auto reached = reached_by_others(call, operands);
    const auto offset = reached.empty() ? 0 : reached.data() - arena->own().data();
    own = ShmTeam::Place{arena->number(), static_cast<std::uint64_t>(offset)};
  }
  team.post_place(own);
  team.wait_for_all(team.publish(), guard);
  if (!arena) return false;
  InMemoryOfAll in_place(team, call, operands);
  if (!in_place.find(*arena, team)) return false;
  in_place.run();
  team.wait_for_all(team.publish(), guard);
  return true;
}

}  // namespace bimetal::comm
