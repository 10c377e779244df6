#pragma once
// Peers from which nothing has come for a while: stopped, asleep, or out of the network's reach;
// and how long one may be silent on an open connection before it counts as lost.

#include <chrono>
#include <optional>

namespace bimetal::net {

/// Silences from this length on are reported. Shorter ones happen on every network.
inline constexpr std::chrono::milliseconds kLongSilence{3000};

/// To be called several times per second by the code that listens to `peer`: nothing, not even a
/// heartbeat, has come from it for so long. A silence that is not noted again within two seconds is
/// over.
void note_silence(int peer, std::chrono::milliseconds so_far);

/// How long that lasts by now. Nothing: the peer is heard, or nobody here listens to it.
std::optional<std::chrono::milliseconds> silence_of(int peer);

/// The value of BIMETAL_PEER_TIMEOUT_S, if it is set. Error(InvalidArgument) unless it is a number
/// of seconds greater than 0.
std::optional<std::chrono::milliseconds> peer_timeout_from_environment();

/// `asked`, or what suits the path: on one machine nothing but a dead peer is silent; a network
/// hiccups.
std::chrono::milliseconds peer_timeout_for(std::optional<std::chrono::milliseconds> asked,
                                           bool stays_on_host);

/// For errors: by what to allow for longer silences.
inline constexpr const char* kPeerTimeoutAdvice =
    "fabric.peer_timeout_s (BIMETAL_PEER_TIMEOUT_S) allows for more";

}  // namespace bimetal::net
