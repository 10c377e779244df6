#include "bimetal/comm/shm/direct.h"

#include <array>
#include <optional>

#include "bimetal/comm/reduce/reduce_across.h"
#include "bimetal/comm/shm/pieces.h"

namespace bimetal::comm {
namespace {

// Where each rank's data lie, if in `arena` all of them.
std::optional<std::array<std::byte*, kMaxTeam>> places_in(const Arena& arena, const ShmTeam& team,
                                                          std::size_t bytes) {
  std::array<std::byte*, kMaxTeam> places;
  for (int rank = 0; rank < team.size(); ++rank) {
    const auto posted = team.posted_place(rank);
    const auto memory = arena.of(rank);
    if (!posted || posted->arena != arena.number()) return std::nullopt;
    if (posted->offset > memory.size() || bytes > memory.size() - posted->offset) {
      return std::nullopt;  // no rank of ours says that
    }
    places[rank] = memory.data() + posted->offset;
  }
  return places;
}

}  // namespace

bool all_reduce_in_place(ShmTeam& team, const Call& call, const Operands& operands,
                         const std::shared_ptr<const Arena>& arena, WaitGuard& guard) {
  std::optional<ShmTeam::Place> own;
  if (arena) {
    const auto offset = operands.output.data() - arena->own().data();
    own = ShmTeam::Place{arena->number(), static_cast<std::uint64_t>(offset)};
  }
  team.post_place(own);
  team.wait_for_all(team.publish(), guard);
  if (!arena) return false;
  const auto places = places_in(*arena, team, operands.output.size());
  if (!places) return false;

  const auto n = static_cast<std::size_t>(team.size());
  const Range piece = piece_of(operands.output.size(), team.rank(), team.size());
  std::array<const std::byte*, kMaxTeam> sources;
  std::array<std::byte*, kMaxTeam> targets;
  for (std::size_t rank = 0; rank < n; ++rank) {
    targets[rank] = (*places)[rank] + piece.begin;
    sources[rank] = targets[rank];
  }
  reduce_across(std::span(sources).first(n), std::span(targets).first(n),
                piece.bytes / size_of(call.dtype), call.dtype, *call.reduce_op);
  team.wait_for_all(team.publish(), guard);
  return true;
}

}  // namespace bimetal::comm
