// A group whose members share memory: how they find out, and how their calls run.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include "bimetal/base/log.h"
#include "bimetal/comm/group/group_impl.h"
#include "bimetal/comm/shm/collectives.h"
#include "bimetal/comm/shm/connect.h"
#include "bimetal/comm/shm/team.h"
#include "bimetal/comm/work.h"

namespace bimetal::comm {
namespace {

// Messages by which members find out, as between any two ranks, under a tag that users are asked to
// leave alone.
constexpr std::uint64_t kTag = ~std::uint64_t{0};

constexpr std::align_val_t kPage{4096};

/// Where a wait is impossible.
class NoWait : public WaitGuard {
 public:
  std::optional<Failure> still_waiting(int rank) override {
    throw Error(ErrorCode::Internal, "a call that was to be done at once had to wait");
  }
};

}  // namespace

void Group::Impl::find_shared_memory() {
  const int size = core_->size();
  topology_.islands = {{0}};
  if (size == 1) return;
  auto host = connect_shared_host(core_->id(), core_->rank(), core_->members(),
                                  {options_.transport, options_.island},
                                  [this](auto own) { return exchange(own); });
  topology_ = std::move(host.topology);
  team_ = std::move(host.team);
  core_->share_memory_with(topology_.island_of(core_->rank()));
  const bool some_share = topology_.islands.size() < static_cast<std::size_t>(size);
  if (some_share && !topology_.one_island()) {
    all_reducer_.use_islands({topology_.islands, team_.get()});
  }
  log(LogLevel::info, "group {}: {} ranks on {} islands, collectives by {}", core_->id(), size,
      topology_.islands.size(), to_string(transport()));
}

// Every member's message, on every member. The data that a rank holds doubles in each step: J.
// Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing
// systems", IEEE TPDS 8(11), 1997, section 4. Partners are near on the ring, and connected first.
std::vector<std::vector<std::byte>> Group::Impl::exchange(std::span<const std::byte> own) {
  const int size = core_->size(), rank = core_->rank();
  std::vector<std::byte> all(own.size() * static_cast<std::size_t>(size));  // from this rank's on
  std::ranges::copy(own, all.begin());
  for (int here = 1; here < size; here *= 2) {
    const std::size_t bytes = own.size() * static_cast<std::size_t>(std::min(here, size - here));
    const Call call{
        .operation = Operation::send_recv, .dtype = DType::uint8, .count = bytes, .sequence = kTag};
    std::byte* const next = all.data() + own.size() * static_cast<std::size_t>(here);
    std::vector<Work> works;
    works.push_back(recv(call, {next, bytes, DType::uint8}, (rank + here) % size, {}));
    works.push_back(send(call, {all.data(), bytes, DType::uint8}, (rank - here + size) % size, {}));
    wait_for_all(works);  // their memory is here
  }
  std::vector<std::vector<std::byte>> messages(static_cast<std::size_t>(size));
  for (int steps = 0; steps < size; ++steps) {
    const auto from = all.begin() + static_cast<std::ptrdiff_t>(own.size()) * steps;
    messages[static_cast<std::size_t>((rank + steps) % size)].assign(
        from, from + static_cast<std::ptrdiff_t>(own.size()));
  }
  return messages;
}

GroupMemory Group::Impl::allocate(std::size_t bytes) {
  const auto private_memory = [&] {
    try {
      const std::size_t most = std::max<std::size_t>(bytes, 1);
      const std::shared_ptr<std::byte> owner(
          static_cast<std::byte*>(::operator new(most, kPage)),
          [](std::byte* memory) { ::operator delete(memory, kPage); });
      std::memset(owner.get(), 0, most);
      return GroupMemory(owner, {owner.get(), bytes}, false);
    } catch (const std::bad_alloc&) {
      throw Error(ErrorCode::OutOfMemory, fmt::format("no memory for {} bytes", bytes));
    }
  };
  if (!whole_team()) return private_memory();
  std::size_t number = 0;
  {
    std::lock_guard lock(issue_mutex_);
    number = arenas_.size() + 1;
  }
  const auto arena = connect_arena(number, core_->rank(), core_->members(), bytes,
                                   [this](auto own) { return exchange(own); });
  std::lock_guard lock(issue_mutex_);
  arenas_.emplace_back(arena);
  if (!arena) return private_memory();
  return {arena, arena->own().first(bytes), true};
}

// A short call whose ranks all come at the same time is over before another thread could have
// taken it up. If some are late, the executor goes on waiting for them.
std::optional<Work> Group::Impl::run_at_once(Call& call, const Operands& operands,
                                             std::optional<Deadline> deadline) {
  if (!ShortCall::suits(call, core_->size()) || !core_->start_at_once(call)) return std::nullopt;
  // Nothing is in flight, so that this thread has the team to itself.
  const auto hand_over = [&](Body body) {
    const auto flight = core_->take_off(call, deadline_or_default(deadline));
    executor_->push([this, flight, body = std::move(body)] { run_now(flight, body); });
    return Work(flight->work);
  };
  if (!team_->free_to_begin()) return hand_over(in_shared_memory(call, operands));
  NoWait no_wait;
  ShortCall given(*team_, call, operands, no_wait);
  if (given.collect_at_once()) {
    core_->finish_at_once(call);
    return Work();
  }
  return hand_over([given](Channel& channel) mutable {
    ChannelGuard guard(channel);
    given.collect(guard);
  });
}

Group::Impl::Body Group::Impl::in_shared_memory(const Call& call, const Operands& operands) {
  ShmTeam* const team = team_.get();
  if (ShortCall::suits(call, core_->size())) {
    return [team, operands](Channel& channel) {
      channel.note_algorithm("shared memory, short");
      ChannelGuard guard(channel);
      ShortCall(*team, channel.call(), operands, guard).collect(guard);
    };
  }
  InPlace in_place;
  in_place.possible = !arenas_.empty();
  // A rank that gives nothing has no input to look for. Its output is asked about instead.
  const auto reached = reached_by_others(call, operands);
  const std::span<const std::byte> asked = reached.empty() ? operands.output : reached;
  for (const auto& known : arenas_) {
    const auto arena = known.lock();
    if (arena && arena->holds(asked)) in_place.arena = arena;
  }
  return [team, operands, in_place](Channel& channel) {
    channel.note_algorithm("shared memory, pipelined");
    ChannelGuard guard(channel);
    if (run_pipelined(*team, channel.call(), operands, in_place, guard)) {
      channel.note_algorithm("shared memory, in place");
    }
  };
}

}  // namespace bimetal::comm
