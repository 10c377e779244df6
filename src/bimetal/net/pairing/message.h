#pragma once
// The messages of two machines before one lets the other into a job. Every message begins with the
// handshake's preamble (net/handshake.h), so that other versions and other ports' clients are told
// as there; then come a u16 length and a body. No sockets here.
//
//   guest                                        host
//   Hello    release, name, nonce     ──────▶
//            ◀──────  Welcome  release, name, nonce
//
//   then one of:
//   AskCode                           ──────▶    shows a code, if none is good
//            ◀──────  Shown | Refused
//
//   Share    Ya                       ──────▶    CPace with the code (cpace.h)
//            ◀──────  Share    Yb | Refused
//   Confirm  Ta                       ──────▶    verified first: a stranger learns nothing
//            ◀──────  Grant    Tb, the sealed grant | Refused
//
//   Known    Noise NNpsk0, first      ──────▶    with the key that both remember (noise.h)
//            ◀──────  Grant    Noise's second, the grant in it | Refused

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bimetal/net/handshake.h"
#include "bimetal/net/noise.h"
#include "bimetal/net/pairing/cpace.h"
#include "bimetal/net/token.h"

namespace bimetal::net::pairing {

/// In the preamble's place for Message. Message::Reject keeps its meaning and layout.
enum class Kind : std::uint8_t {
  Hello = 1,
  Reject = 5,
  Welcome = 16,
  AskCode = 17,
  Shown = 18,
  Share = 19,
  Confirm = 20,
  Known = 21,
  Grant = 22,
  Refused = 23,
};

inline constexpr std::size_t kMaxBodyBytes = 8192;
inline constexpr std::size_t kHeadBytes = kPreambleBytes + sizeof(std::uint16_t);
using Head = std::array<std::byte, kHeadBytes>;
using Body = std::vector<std::byte>;

/// A whole message.
std::vector<std::byte> encode(Kind kind, std::span<const std::byte> body);

/// Length of the body after a head. Error(CorruptData) beyond kMaxBodyBytes.
std::size_t body_bytes(std::span<const std::byte, kHeadBytes> head);

/// A machine's introduction of itself: a Hello or a Welcome. Names are fit for a terminal.
struct Introduction {
  std::string release;  ///< of their Bimetal
  std::string name;     ///< of the machine, as is_machine_name()
  std::array<std::byte, 16> nonce{};
};
Body encode(const Introduction& introduction);

enum class Reason : std::uint8_t {
  no_code = 1,     ///< none is good: too late, used, or tried too often. number: seconds to wait
  wrong_code = 2,  ///< number: tries left
  unknown = 3,     ///< the guest's machine is not remembered
  key = 4,         ///< it is remembered with another key
};
struct Refused {
  Reason reason = Reason::no_code;
  std::uint32_t number = 0;
};
Body encode(const Refused& refused);

/// Everything that a machine needs once it has been let in.
struct Grant {
  Token token;             ///< the job's
  std::uint16_t port = 0;  ///< of its rendezvous store, at the same address
  bool encrypted = true;   ///< whether connections of the job are
};
Body encode(const Grant& grant);

// Error(CorruptData) for bytes that are none.
Introduction decode_introduction(std::span<const std::byte> body);
Refused decode_refused(std::span<const std::byte> body);
Grant decode_grant(std::span<const std::byte> body);

// The results of the exchange, for both sides, once it is confirmed.

/// Both introductions, for CPace and Noise.
struct Transcript {
  Body hello, welcome;
  Body session;  ///< both nonces
  Body prologue() const;
};
Transcript make_transcript(Body hello, Body welcome);

cpace::Inputs code_inputs(std::string_view code, const Transcript& transcript);

/// Seals the grant.
noise::CipherState grant_cipher(const cpace::SessionKey& key);
/// The key that both machines remember.
noise::Key machine_key(const cpace::SessionKey& key);

}  // namespace bimetal::net::pairing
