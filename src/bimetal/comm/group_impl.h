#pragma once
// One process's part in a group: the core, the thread that runs its collectives, and its end.

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "bimetal/comm/channel.h"
#include "bimetal/comm/executor.h"
#include "bimetal/comm/fabric.h"
#include "bimetal/comm/group.h"
#include "bimetal/comm/group_core.h"

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

  /// Runs `body` as the group's next collective.
  Work run(Call call, std::optional<Deadline> deadline, Body body);

  Work send(Call call, ConstBuffer data, int peer, std::optional<Deadline> deadline);
  Work recv(Call call, Buffer data, int peer, std::optional<Deadline> deadline);

  void close(Deadline deadline);

 private:
  Deadline deadline_or_default(std::optional<Deadline> deadline) const;
  void run_now(const std::shared_ptr<Flight>& flight, const Body& body);
  void finish_message(const std::shared_ptr<Flight>& flight);

  const std::shared_ptr<Fabric> fabric_;
  const std::shared_ptr<GroupCore> core_;
  const GroupOptions options_;
  std::mutex issue_mutex_;  // makes the order of calls one order
  std::mutex close_mutex_;
  bool closed_ = false;
  std::unique_ptr<Executor> executor_;  // none in a group of one, whose calls end at once
};

}  // namespace bimetal::comm
