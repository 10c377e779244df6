#pragma once
// Parameter servers' figures on their workers, in the journal's form.

#include <cstdint>
#include <vector>

#include "bimetal/job/job_config.h"
#include "bimetal/parallel/server/coordinator.h"
#include "bimetal/progress/journal.h"

namespace bimetal::train {

using Workers = std::vector<parallel::server::WorkerFigures>;  ///< in the order of their numbers

/// By number.
std::vector<progress::WorkerPlace> places_of(const Workers& workers);

/// A step that server 0 tells of, into the journal. Workers have the places of their numbers; one
/// that is gone keeps its own.
progress::Progress note_step(progress::Journal& journal, const parallel::server::StepEvent& event);

/// Figures that only servers have.
struct ServersAtEnd {
  std::int64_t updates = 0;  ///< changes of the parameters in this run
  std::int64_t samples_repeated = 0;
  std::uint64_t bytes_sent = 0;
};
progress::Report report_of_servers(const progress::Journal& journal,
                                   const job::ServersConfig& config, std::int64_t steps,
                                   const Workers& workers, const ServersAtEnd& servers);

}  // namespace bimetal::train
