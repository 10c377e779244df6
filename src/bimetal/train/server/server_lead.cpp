// A process that led the job may have been stopped, its machine asleep: the others have given it
// up, and server 0's copy leads. Until it has heard of that it believes that it leads, and its
// checkpoints would be older than those that the others have saved since. docs/parameter_server.md,
// "When a server dies".
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "bimetal/base/error.h"
#include "bimetal/checkpoint/checkpoint.h"
#include "bimetal/parallel/server/link/questions.h"
#include "bimetal/train/server/server_process.h"
#include "bimetal/train/server/server_setup.h"

namespace bimetal::train {
namespace {

/// A copy out of reach may cost a job with many checkpoints no more than a twentieth of its time.
constexpr std::chrono::seconds kAskAgain{40};

}  // namespace

bool ServerProcess::require_lead() {
  if (!has_copies() || run_.server != 0) return true;
  // The copy says so in the job's store, which may be out of its reach; where it listens it says
  // so as long as it trains.
  const bool given_up = run_.directory->withdrawn(run_.server);
  const auto leader = given_up ? std::nullopt : ask_stand_in();
  if (!given_up && leader.value_or(0) == 0) return leader.has_value();
  throw Error(ErrorCode::Timeout,
              fmt::format("server 0 was not heard of for a while, and server {} leads the job in "
                          "its place",
                          shards()),
              run_.server);
}

/// The server that leads, if it answers. If nothing answers at all, each question takes a while.
std::optional<int> ServerProcess::ask_stand_in() {
  if (!stand_in_ || (!ask_again_.expired() && !stopping_)) return std::nullopt;
  const auto leader =
      ps::who_leads(*stand_in_, fmt::format("server {}", shards()), run_.credentials);
  if (!leader) ask_again_ = Deadline::after(kAskAgain);
  return leader;
}

void ServerProcess::require_right_to_save() {
  if (!has_copies()) return;
  const auto workers = server_.figures();
  const bool any_follows = require_lead() || std::ranges::any_of(workers, [](const auto& worker) {
                             return !worker.lost;
                           });
  if (!any_follows) {
    throw Error(ErrorCode::PeerLost,
                fmt::format("server {} has lost all others, who may train without it: it saves "
                            "nothing, and the last checkpoint is kept",
                            run_.server),
                run_.server);
  }
  require_newest_here();
}

void ServerProcess::require_newest_here() const {
  if (!job_.checkpoint.dir.empty()) require_own(checkpoint::last_save(job_.checkpoint.dir));
}

void ServerProcess::require_own(const checkpoint::LastSave& newest) const {
  if (!has_copies()) return;
  const bool by_another =
      newest.sequence > first_sequence_ && (newest.term > state_.term || newest.step > state_.step);
  if (!by_another) return;
  throw Error(ErrorCode::Timeout,
              fmt::format("{} was saved by a process that leads the job in the place of this one, "
                          "which is at step {}: it saves nothing; go on with --resume {}",
                          newest.path.string(), state_.step, job_.checkpoint.dir),
              run_.server);
}

}  // namespace bimetal::train
