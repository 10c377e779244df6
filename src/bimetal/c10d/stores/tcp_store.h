#pragma once
// torch's own key-value store, which torchrun's agent serves, behind Bimetal's Store interface.
// Used to exchange addresses only: it neither authenticates nor encrypts, so no secret goes in.

#include <memory>
#include <string>

#include "bimetal/base/deadline.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/rendezvous/store.h"

namespace bimetal::c10d {

/// Connects as a client to the c10d::TCPStore at `server`. Keys get `prefix`, which keeps them
/// apart from torch's own. `local_address` is what Store::local_address answers. Errors: Timeout
/// or System naming the address.
std::unique_ptr<rendezvous::Store> connect_tcp_store(const net::Endpoint& server,
                                                     std::string prefix, std::string local_address,
                                                     Deadline deadline);

}  // namespace bimetal::c10d
