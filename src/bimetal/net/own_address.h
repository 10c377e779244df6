#pragma once
// The address of this machine by which the others of a job can reach it.

#include <string>

#include "bimetal/net/endpoint.h"

namespace bimetal::net {

/// The address from which this machine would send to `peer`; nothing is sent. Error(System) if the
/// name has no address or no network leads there.
std::string address_towards(const Endpoint& peer);

/// The address by which other machines reach a server that listens on `host`: `host` itself unless
/// that stands for every address ("0.0.0.0", "::"). Error(InvalidArgument) asks for an explicit
/// one where this machine has no network.
std::string reachable_address(const std::string& host);

}  // namespace bimetal::net
