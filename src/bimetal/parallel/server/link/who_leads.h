#pragma once
// A server that others have given up may not know it, because it was stopped, its machine was
// asleep, or its network was cut. Before it acts as leader, it asks a server that would know.

#include <optional>
#include <string>

#include "bimetal/net/endpoint.h"
#include "bimetal/parallel/server/link/link.h"

namespace bimetal::parallel::server {

/// The number of the server that leads the job, as the one at `server` sees it; nothing where that
/// one does not answer: at once if no process listens there any more. `name` is for the log.
std::optional<int> who_leads(const net::Endpoint& server, const std::string& name,
                             const Credentials& credentials);

}  // namespace bimetal::parallel::server
