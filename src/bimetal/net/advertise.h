#pragma once
// Chooses the addresses on which a rank listens and which it tells the others.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bimetal/net/interfaces.h"

namespace bimetal::net {

/// More are of no use: they only make a rank that cannot be reached harder to notice.
inline constexpr std::size_t kMaxAdvertised = 16;

/// BIMETAL_INTERFACE, or empty: which interfaces to use, as names ("eth0,en0"), addresses or
/// prefixes ("10.0.0.2", "192.168.0.0/16,fd00::/8"), the one to prefer first.
std::string interfaces_from_environment();

/// The addresses to listen on and to advertise, at least one, the one to prefer first.
///
/// `towards_store` is this rank's address on the path to the store. If that is loopback (or empty),
/// so is the job: loopback alone is used, whatever is selected. Otherwise that address comes first,
/// for what reaches the store most likely reaches its ranks, and the other interfaces' addresses
/// follow. Never advertised are loopback, link-local IPv6 addresses, whose meaning differs between
/// machines, and interfaces made for containers and virtual machines (docker0, br-…, veth…, virbr…,
/// cni… and their like), whose addresses other hosts have, too.
///
/// `selection` as in interfaces_from_environment() replaces all but the rules on loopback and
/// link-local addresses. Error(InvalidArgument) names what there is where it fits nothing or is not
/// well-formed.
std::vector<std::string> addresses_to_advertise(std::string_view selection,
                                                std::string_view towards_store,
                                                std::span<const InterfaceAddress> own);

}  // namespace bimetal::net
