#include "bimetal/cli/train/failed_ranks.h"

#include <fmt/format.h>

#include <chrono>

#include "bimetal/base/error.h"
#include "bimetal/cli/train/server_directory.h"
#include "bimetal/cli/train/shared_job.h"
#include "bimetal/job/mesh_keys.h"
#include "bimetal/launch/meet.h"
#include "bimetal/rendezvous/bootstrap.h"
#include "bimetal/rendezvous/failure_note.h"
#include "bimetal/rendezvous/survivors.h"
#include "bimetal/train/replicas.h"

namespace bimetal::cli {
namespace {

constexpr std::chrono::seconds kToLeaveWord{5};

/// A rank of a mesh is told of by its place in it. One that does not fit the ranks they refuse.
void name_by_place(launch::LaunchPlan& plan, const job::MeshConfig& mesh) {
  if (is_open(mesh)) return;
  if (mesh.stages * mesh.tensor == 1) return;
  parallel::MeshShape shape;
  try {
    shape = train::shape_of(mesh, plan.world_size);
  } catch (const Error&) {
    return;
  }
  for (std::size_t i = 0; i < plan.ranks.size(); ++i) {
    auto& name = plan.ranks[i].name;
    name = fmt::format("{}, {}", name_of(shape, plan.first_rank + static_cast<int>(i)), name);
  }
}

}  // namespace

void tell_of_failed_ranks(launch::LaunchPlan& plan, const LocalRanks& ranks,
                          rendezvous::Store& store) {
  if (!ranks.servers.empty()) {
    withdraw_failed_servers(plan, ranks, store);
    return;
  }
  name_by_place(plan, ranks.job.mesh);
  plan.on_failure = [&store, first = plan.first_rank](int index, const Error& how) {
    // Whatever it was to the rank itself, to the others it is a lost peer.
    const Error note(
        ErrorCode::PeerLost,
        fmt::format("on {}, before all ranks had met: {}", own_host_name(), how.what()),
        first + index);
    try {
      rendezvous::note_end(store, launch::kSurvivors, first + index, Deadline::after(kToLeaveWord));
      rendezvous::note_failure(store, rendezvous::fault_key(), note, Deadline::after(kToLeaveWord));
    } catch (const Error&) {
      // The store is gone, and with it whoever would look.
    }
  };
}

}  // namespace bimetal::cli
