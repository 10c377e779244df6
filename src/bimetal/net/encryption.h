#pragma once
// Whether connections are encrypted. All processes of a job must agree; the handshake tells both
// sides if they don't.

#include <string_view>

namespace bimetal::net {

enum class Encryption {
  off,  ///< authenticated, but readable on the network
  on,   ///< Noise (net/noise.h): nobody between the two can read or change a byte
};

/// BIMETAL_ENCRYPTION: "on", "off", or unset for off. Throws Error(InvalidArgument) for anything
/// else.
Encryption encryption_from_environment();

/// Says in the log, as a warning and once per process, that a job's connections are readable on the
/// network, and how to change that. Not where `listen_host` is loopback. For the one process that
/// speaks for the job: rank 0, server 0. Thread-safe.
void note_if_plain(std::string_view listen_host, Encryption encryption);

}  // namespace bimetal::net
