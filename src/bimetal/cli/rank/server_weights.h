#pragma once
// How much each parameter server keeps, where the job says only how many there are: by the
// bandwidth that workers see. Every process of the job needs the weights before it can plan the
// shards.
//
// Each server answers measurements (link_rate.h) and says where. Server 0 lets the workers that are
// there by then measure, one after the other, so that they do not disturb each other; one that is
// lost at it is passed over. It writes the weights into the directory, where the others, and
// whoever comes later, find them. Servers whose addresses are all one host's have equal weights at
// once.

#include <functional>
#include <string>
#include <vector>

#include "bimetal/cli/rank/server_directory.h"
#include "bimetal/job/job_config.h"
#include "bimetal/progress/observer.h"
#include "bimetal/train/server/server_job.h"

namespace bimetal::cli {

/// Whether a job's weights are to be measured at all.
bool weighs_servers(const job::ServersConfig& servers);

/// As if the job file had given these.
inline void set_weights(job::ServersConfig& servers, std::vector<double> weights) {
  servers.weights = std::move(weights);
  servers.weigh = false;
}

struct Weighing {
  ServerDirectory& directory;
  int servers = 1;
  train::ServerNetwork network;
  std::function<bool()> stop;  ///< whether to give up, with Aborted
};

/// A server's part. Server 0 tells `observer` what came of it. Errors: PeerLost naming a server
/// that has died; Timeout after cluster.join_timeout_s.
std::vector<double> weigh_as_server(const Weighing& weighing, int server,
                                    const std::string& listen_host, progress::Observer& observer);

/// A worker's part: the same weights.
std::vector<double> weigh_as_worker(const Weighing& weighing);

}  // namespace bimetal::cli
