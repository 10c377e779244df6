#pragma once
// The Noise Protocol Framework (T. Perrin, revision 34, noiseprotocol.org), as far as Bimetal needs
// it: the handshake Noise_NNpsk0_25519_ChaChaPoly_BLAKE2b and the messages after it. Two sides that
// know one secret get keys that nobody else can compute, not even who learns the secret later. The
// primitives are libsodium's; section numbers refer to the specification.
//
//   -> psk, e
//   <- e, ee

#include <sodium.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bimetal/base/error.h"

namespace bimetal::net {

// libsodium, initialised. Include this instead of <sodium.h>.

/// To be called before libsodium's first use; cheap and thread-safe.
inline void ensure_sodium() {
  static const bool ready = sodium_init() >= 0;
  if (!ready) throw Error(ErrorCode::System, "libsodium found no source of random numbers");
}

}  // namespace bimetal::net

namespace bimetal::net::noise {

inline constexpr std::size_t kKeyBytes = 32;
inline constexpr std::size_t kTagBytes = 16;
inline constexpr std::size_t kHashBytes = 64;
inline constexpr std::size_t kMaxMessageBytes = 65535;

using Key = std::array<std::byte, kKeyBytes>;
using Hash = std::array<std::byte, kHashBytes>;

/// A key and the number of the next message under it (section 5.1). Wiped on release.
/// Not thread-safe.
class CipherState {
 public:
  explicit CipherState(const Key& key, std::uint64_t next_nonce = 0)
      : key_(key), nonce_(next_nonce) {}
  ~CipherState();
  CipherState(const CipherState&) = default;
  CipherState& operator=(const CipherState&) = default;

  /// Writes plaintext.size() + kTagBytes bytes to `out`, which may be the plaintext's own memory.
  /// Throws Error(Internal) when the numbers are used up.
  void encrypt(std::span<const std::byte> associated, std::span<const std::byte> plaintext,
               std::byte* out);

  /// Decrypts in place; the plaintext is the message's head. Throws Error(CorruptData), and leaves
  /// nothing of the message readable, if it is not the other side's next message.
  std::span<std::byte> decrypt(std::span<const std::byte> associated, std::span<std::byte> message);

  /// A new key made from the old one, so that the old one can be forgotten (section 11.3). The
  /// count of messages goes on.
  void rekey();

 private:
  Key key_;
  std::uint64_t nonce_;
};

/// One side of the handshake. Each side writes and reads one message, in its turn.
class Handshake {
 public:
  enum class Role { initiator, responder };

  /// Length of a message without payload.
  static constexpr std::size_t kMessageBytes = kKeyBytes + kTagBytes;

  /// Both sides must give the same `secret` and `prologue`. `ephemeral` is for tests alone.
  Handshake(Role role, const Key& secret, std::span<const std::byte> prologue,
            const std::optional<Key>& ephemeral = {});
  ~Handshake();
  Handshake(const Handshake&) = delete;
  Handshake& operator=(const Handshake&) = delete;

  std::vector<std::byte> write(std::span<const std::byte> payload = {});

  /// The payload. Throws Error(Unauthorized) where the other side does not know the secret, or
  /// something has been altered on the way.
  std::vector<std::byte> read(std::span<const std::byte> message);

  /// After both messages: the ciphers from the initiator to the responder, and back.
  struct Ciphers {
    CipherState to_responder;
    CipherState to_initiator;
  };
  Ciphers split() const;

  /// Names this handshake alone (section 11.2).
  const Hash& hash() const noexcept { return hash_; }

 private:
  void mix_hash(std::span<const std::byte> data);
  void mix_key(std::span<const std::byte> input);
  void mix_key_and_hash(std::span<const std::byte> input);
  void mix_shared_secret();

  const Role role_;
  Hash hash_;
  Hash chaining_key_;
  std::optional<CipherState> cipher_;
  Key own_secret_;
  Key own_public_;
  Key their_public_{};
};

}  // namespace bimetal::net::noise
