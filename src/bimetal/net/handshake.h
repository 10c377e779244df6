#pragma once
// How two processes prove to each other that they know the job's token, without sending it: the
// messages, their layout, and the keys. No sockets here; net/tcp/authenticate.h drives it.
//
//   client                                   server
//   Hello      who I am, nonce      ──────▶
//              ◀──────  Challenge   nonce
//   Proof      HMAC(token, client)  ──────▶  verified first: a stranger learns nothing
//              ◀──────  Accept      HMAC(token, server)
//
// Either HMAC covers Hello and Challenge whole, and a label that names the prover's role, so that a
// proof can be neither replayed nor sent back to its maker. Where both want encryption, a Noise
// handshake follows (net/noise.h). A Reject may take the place of a server's message. The preamble
// of every message and the whole Reject keep their layout in all protocol versions. Full
// description: docs/protocol.md.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "bimetal/net/frame.h"
#include "bimetal/net/noise.h"
#include "bimetal/net/token.h"

namespace bimetal::net {

inline constexpr std::uint32_t kHandshakeMagic = 0x53484d42;  // "BMHS"

/// The service that the client wants of the server. It is part of the proof: nobody can pass off a
/// port of one kind as one of another.
enum class Service : std::uint8_t {
  Mesh = 1,
  Store = 2,
  Parameters = 3,
  Predictions = 4,
  Pairing = 5,  ///< net/pairing/pairing.h
};

enum class Message : std::uint8_t { Hello = 1, Challenge = 2, Proof = 3, Accept = 4, Reject = 5 };

enum class Refusal : std::uint16_t {
  Version = 1,  ///< another protocol version; the Reject's preamble carries the refuser's
  Service = 2,  ///< this port serves something else
  Token = 3,    ///< the proof does not fit this side's token
  Job = 4,      ///< right token, another job
  Rank = 5,     ///< right job, but this is not the rank asked for, or the client's rank is not due
  Encryption = 6,  ///< one side wants an encrypted connection, the other a plain one
};

/// The first eight bytes of every message, the same in every protocol version.
struct Preamble {
  std::uint32_t magic = kHandshakeMagic;
  std::uint16_t version = kProtocolVersion;
  Message message = Message::Hello;
  Service service = Service::Mesh;
};

inline constexpr std::size_t kPreambleBytes = 8;
inline constexpr std::size_t kHelloBytes = 72;
inline constexpr std::size_t kChallengeBytes = 40;
inline constexpr std::size_t kProofBytes = 40;
inline constexpr std::size_t kRejectBytes = 16;

using Nonce = std::array<std::byte, 32>;
using JobDigest = std::array<std::byte, 16>;
using Proof = std::array<std::byte, 32>;

struct Hello {
  Service service = Service::Mesh;
  int from_rank = -1;  ///< the client's rank, -1 where ranks have no meaning
  int to_rank = -1;    ///< the rank that the client believes it talks to
  JobDigest job{};
  Nonce nonce{};
  bool encrypted = false;  ///< whether the client wants to go on encrypted
};

/// A name of any length as 16 bytes.
JobDigest digest_of_job(std::string_view job_id);

Nonce fresh_nonce();

Preamble decode_preamble(std::span<const std::byte, kPreambleBytes> bytes);

std::array<std::byte, kHelloBytes> encode_hello(const Hello& hello);
Hello decode_hello(std::span<const std::byte, kHelloBytes> bytes);

std::array<std::byte, kChallengeBytes> encode_challenge(Service service, const Nonce& nonce);

/// `message` is Proof or Accept.
std::array<std::byte, kProofBytes> encode_proof(Message message, Service service,
                                                const Proof& proof);
Proof decode_proof(std::span<const std::byte, kProofBytes> bytes);

std::array<std::byte, kRejectBytes> encode_reject(Service service, Refusal refusal);
/// The reason as sent; a later version may send reasons that Refusal does not name.
std::uint16_t decode_reject(std::span<const std::byte, kRejectBytes> bytes);

/// The Hello and the Challenge as they went over the wire: what proofs and keys are bound to.
using Transcript = std::array<std::byte, kHelloBytes + kChallengeBytes>;
Transcript make_transcript(std::span<const std::byte, kHelloBytes> hello,
                           std::span<const std::byte, kChallengeBytes> challenge);

/// The keys that a connection goes on with: the key of each direction's seal (net/frame.h) and,
/// where it is encrypted, the ciphers (the client is the initiator).
struct SessionKeys {
  SessionKey client_to_server{};
  SessionKey server_to_client{};
  std::optional<noise::Handshake::Ciphers> ciphers{};

  /// Those of one direction, where the connection is encrypted.
  std::optional<noise::CipherState> cipher_to_server() const {
    return ciphers ? std::optional(ciphers->to_responder) : std::nullopt;
  }
  std::optional<noise::CipherState> cipher_to_client() const {
    return ciphers ? std::optional(ciphers->to_initiator) : std::nullopt;
  }
};

/// A key made from the token; wiped on release. An empty token gives a key that everyone knows.
class HandshakeKey {
 public:
  explicit HandshakeKey(const Token& token);
  ~HandshakeKey();
  HandshakeKey(const HandshakeKey&) = default;
  HandshakeKey& operator=(const HandshakeKey&) = default;

  Proof client_proof(const Transcript& transcript) const;
  Proof server_proof(const Transcript& transcript) const;
  SessionKeys session_keys(const Transcript& transcript) const;

  /// The pre-shared key of the encryption handshake.
  noise::Key encryption_secret() const;

 private:
  Proof prove(std::string_view role, const Transcript& transcript) const;
  SessionKey derive(std::string_view direction, const Transcript& transcript) const;

  std::array<unsigned char, 32> key_;
};

/// In a time that does not depend on where they differ.
bool same_proof(const Proof& a, const Proof& b);

}  // namespace bimetal::net
