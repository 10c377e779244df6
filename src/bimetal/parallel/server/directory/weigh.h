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

#include <string>
#include <vector>

#include "bimetal/parallel/server/directory/directory.h"
#include "bimetal/parallel/server/link/link.h"
#include "bimetal/progress/observer.h"

namespace bimetal::parallel::server {

struct Weighing {
  ServerDirectory& directory;
  int servers = 1;
  Credentials credentials;
};

/// A server's part, which listens at `listen_host` for as long. Server 0 tells `observer` what came
/// of it. Errors: PeerLost naming a server that has died; Timeout after the directory's deadline;
/// Aborted.
std::vector<double> weigh_as_server(const Weighing& weighing, int server,
                                    const std::string& listen_host, progress::Observer& observer);

/// A worker's part: the same weights.
std::vector<double> weigh_as_worker(const Weighing& weighing);

}  // namespace bimetal::parallel::server
