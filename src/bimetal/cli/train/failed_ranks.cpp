#include "bimetal/cli/train/failed_ranks.h"

#include <fmt/format.h>

#include <chrono>

#include "bimetal/base/error.h"
#include "bimetal/cli/train/server_directory.h"
#include "bimetal/cli/train/shared_job.h"
#include "bimetal/rendezvous/bootstrap.h"
#include "bimetal/rendezvous/failure_note.h"

namespace bimetal::cli {
namespace {

constexpr std::chrono::seconds kToLeaveWord{5};

}  // namespace

void tell_of_failed_ranks(launch::LaunchPlan& plan, const LocalRanks& ranks,
                          rendezvous::Store& store) {
  if (!ranks.servers.empty()) {
    withdraw_failed_servers(plan, ranks, store);
    return;
  }
  plan.on_failure = [&store, first = plan.first_rank](int index, const Error& how) {
    // Whatever it was to the rank itself, to the others it is a lost peer.
    const Error note(
        ErrorCode::PeerLost,
        fmt::format("on {}, before all ranks had met: {}", own_host_name(), how.what()),
        first + index);
    try {
      rendezvous::note_failure(store, rendezvous::fault_key(), note, Deadline::after(kToLeaveWord));
    } catch (const Error&) {
      // The store is gone, and with it whoever would look.
    }
  };
}

}  // namespace bimetal::cli
