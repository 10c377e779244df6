#pragma once
// Whether connections are encrypted. All processes of a job must agree; the handshake tells both
// sides where they don't.

namespace bimetal::net {

enum class Encryption {
  off,  ///< authenticated, but readable on the network
  on,   ///< Noise (net/noise.h): nobody between the two can read or change a byte
};

/// BIMETAL_ENCRYPTION: "on", "off", or unset for off. Throws Error(InvalidArgument) for anything
/// else.
Encryption encryption_from_environment();

}  // namespace bimetal::net
