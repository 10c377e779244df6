#pragma once
// How long a peer may be silent on an open connection before it counts as lost.

#include <chrono>
#include <optional>

namespace bimetal::net {

/// What BIMETAL_PEER_TIMEOUT_S says, if anything. Error(InvalidArgument) for what is no number of
/// seconds greater than 0.
std::optional<std::chrono::milliseconds> peer_timeout_from_environment();

/// `asked`, or what suits the path: on one machine nothing but a dead peer is silent; a network
/// hiccups.
std::chrono::milliseconds peer_timeout_for(std::optional<std::chrono::milliseconds> asked,
                                           bool stays_on_host);

/// For errors: by what to allow for longer silences.
inline constexpr const char* kPeerTimeoutAdvice =
    "fabric.peer_timeout_s (BIMETAL_PEER_TIMEOUT_S) allows for more";

}  // namespace bimetal::net
