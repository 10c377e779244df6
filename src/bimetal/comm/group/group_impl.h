#pragma once
// One process's part in a group: the core, the thread that runs its collectives, and its end.

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "bimetal/comm/fabric.h"
#include "bimetal/comm/group.h"
#include "bimetal/comm/group/all_reducer.h"
#include "bimetal/comm/group/executor.h"
#include "bimetal/comm/group/group_core.h"
#include "bimetal/comm/mailbox/channel.h"
#include "bimetal/comm/reduce/reduce_kernels.h"
#include "bimetal/comm/shm/segment.h"
#include "bimetal/comm/shm/team.h"

namespace bimetal::comm {

struct Group::Impl {
 public:
  using Body = std::function<void(Channel&)>;

  /// `members` are world ranks; this one is among them.
  Impl(std::shared_ptr<Fabric> fabric, std::uint32_t id, std::vector<int> members,
       GroupOptions options);
  ~Impl();

  GroupCore& core() noexcept { return *core_; }
  const std::shared_ptr<Fabric>& fabric() const noexcept { return fabric_; }
  const GroupOptions& options() const noexcept { return options_; }

  /// Finds out which members share memory, for the collectives to use. Once, before the first of
  /// them; every member does so.
  void find_shared_memory();
  const Topology& topology() const noexcept { return topology_; }
  /// The group's islands, be it but one.
  Islands islands() const { return {topology_.islands, team_.get()}; }
  Transport transport() const noexcept {
    if (whole_team()) return Transport::shm;
    return fabric_->mesh().carrier() == "mpi" ? Transport::mpi : Transport::tcp;
  }

  GroupMemory allocate(std::size_t bytes);

  /// For the bodies of calls.
  AllReducer& all_reducer() noexcept { return all_reducer_; }

  /// Runs `body` as the group's next collective.
  Work run(Call call, std::optional<Deadline> deadline, Body body);
  /// The same, but in shared memory where all members have it.
  Work run(Call call, Operands operands, std::optional<Deadline> deadline, Body body);

  Work send(Call call, ConstBuffer data, int peer, std::optional<Deadline> deadline);
  /// peer: -1 for any rank.
  Work recv(Call call, Buffer data, int peer, std::optional<Deadline> deadline);

  void close(Deadline deadline);

 private:
  Deadline deadline_or_default(std::optional<Deadline> deadline) const;
  Work issue(Call call, std::optional<Deadline> deadline, Body body,
             std::unique_lock<std::mutex> lock);
  std::optional<Work> run_at_once(Call& call, const Operands& operands,
                                  std::optional<Deadline> deadline);
  Body in_shared_memory(const Call& call, const Operands& operands);
  ShmTeam* whole_team() const noexcept { return topology_.one_island() ? team_.get() : nullptr; }
  std::vector<std::vector<std::byte>> exchange(std::span<const std::byte> own);
  void run_now(const std::shared_ptr<Flight>& flight, const Body& body);
  void finish_message(const std::shared_ptr<Flight>& flight);

  const std::shared_ptr<Fabric> fabric_;
  const std::shared_ptr<GroupCore> core_;
  const GroupOptions options_;
  AllReducer all_reducer_;
  Topology topology_;
  std::unique_ptr<ShmTeam> team_;                   // of this rank's island
  std::vector<std::weak_ptr<const Arena>> arenas_;  // by their numbers; under issue_mutex_
  std::mutex issue_mutex_;                          // makes the order of calls one order
  std::mutex close_mutex_;
  bool closed_ = false;
  std::unique_ptr<Executor> executor_;  // none in a group of one, whose calls end at once
};

}  // namespace bimetal::comm
