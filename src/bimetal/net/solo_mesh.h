#pragma once
// The mesh of a job with one rank: no peers, no sockets, no thread.

#include <memory>

#include "bimetal/net/mesh.h"

namespace bimetal::net {

/// `host_name` is what host_of(0) says.
std::unique_ptr<Mesh> make_solo_mesh(std::string host_name);

}  // namespace bimetal::net
