#pragma once
// Peers from which nothing has come for a while: stopped, asleep, or out of the network's reach.
// For those who watch a job while its own threads wait for such a peer. There is one list in a
// process, as there is one sink of the log. Thread-safe.

#include <chrono>
#include <optional>

namespace bimetal::net {

/// What is told of: shorter ones happen on every network.
inline constexpr std::chrono::milliseconds kLongSilence{3000};

/// For whoever listens to `peer`, several times per second: nothing, not even a heartbeat, has come
/// from it for so long. What is not said again within two seconds is over.
void note_silence(int peer, std::chrono::milliseconds so_far);

/// How long that lasts by now. Nothing: the peer is heard, or nobody here listens to it.
std::optional<std::chrono::milliseconds> silence_of(int peer);

}  // namespace bimetal::net
