#pragma once
// What processes of a job with parameter servers find out from each other beside its connections:
// how fast the link between them is, and who leads.

#include <optional>
#include <string>

#include "bimetal/base/deadline.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/parallel/server/link/link.h"
#include "bimetal/parallel/server/link/link_server.h"
#include "bimetal/parallel/server/shard_plan.h"

namespace bimetal::parallel::server {

/// Answers measurements, from a thread of its own, until it is destroyed. A client must show the
/// job's token, and can make it keep 4 MiB at most per connection.
class RateServer {
 public:
  /// Errors of net::Listener; port 0: any.
  RateServer(const net::Endpoint& listen, const Credentials& credentials);
  net::Endpoint endpoint() const { return server_.endpoint(); }

 private:
  LinkServer server_;
};

/// Sends and fetches growing messages, one direction after the other, until one has taken a tenth
/// of a second or had 4 MiB. `name` is for messages. Errors of net::dial; PeerLost, Timeout.
LinkRate measure_rate(const net::Endpoint& server, const std::string& name,
                      const Credentials& credentials, Deadline deadline);

/// The number of the server that leads the job, as the one at `server` sees it; nothing where that
/// one does not answer: at once if no process listens there any more. `name` is for the log.
std::optional<int> who_leads(const net::Endpoint& server, const std::string& name,
                             const Credentials& credentials);

}  // namespace bimetal::parallel::server
