#pragma once
// CPace (draft-irtf-cfrg-cpace-21), the suite CPACE-RISTR255-SHA512 with an initiator and a
// responder, and its explicit key confirmation. Two sides that know one password, however short,
// get a key that nobody else has. A participant without the password can try one guess and learns
// whether it was right. A listener learns nothing. The group and the hash are libsodium's.
//
//   A, initiator:  Ya, ADa ──────▶
//                          ◀────── Yb, ADb   :B, responder
//                  Ta      ──────▶
//                          ◀────── Tb

#include <array>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace bimetal::net::cpace {

inline constexpr std::size_t kShareBytes = 32;

using Share = std::array<std::byte, kShareBytes>;   ///< Ya or Yb: an encoded point of the group
using Scalar = std::array<std::byte, kShareBytes>;  ///< ya or yb, little-endian
using SessionKey = std::array<std::byte, 64>;       ///< ISK
using Tag = std::array<std::byte, 64>;              ///< Ta or Tb: HMAC-SHA-512

/// The inputs that both sides know beforehand.
struct Inputs {
  std::string_view password;           ///< PRS
  std::span<const std::byte> channel;  ///< CI
  std::span<const std::byte> session;  ///< sid
};

/// The encoded generator of these inputs.
Share generator(const Inputs& inputs);

/// One side of one run. Its secrets are wiped on release.
class Exchange {
 public:
  enum class Role { initiator, responder };

  /// `associated` is sent along with the share, and both sides must have seen the same: ADa of the
  /// initiator, ADb of the responder. `secret` is for tests alone.
  Exchange(Role role, const Inputs& inputs, std::span<const std::byte> associated,
           const std::optional<Scalar>& secret = {});
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  const Share& share() const noexcept { return own_share_; }

  /// Call once, with the other side's message. Error(Unauthorized) for a share that is no point of
  /// the group, or its neutral element.
  void receive(const Share& share, std::span<const std::byte> associated);

  // After receive().

  /// Shows the other side that this one has the key.
  Tag tag() const;
  /// Whether the other side has it, too; in a time that does not depend on where a tag is wrong.
  bool confirms(const Tag& theirs) const;
  const SessionKey& session_key() const noexcept { return key_; }

 private:
  Tag tag_of(const Share& share, std::span<const std::byte> associated) const;

  const Role role_;
  std::vector<std::byte> session_;
  std::vector<std::byte> own_associated_, their_associated_;
  Scalar secret_;
  Share own_share_{}, their_share_{};
  SessionKey key_{};
};

/// Strings one after the other, each after its length as LEB128 (the draft's lv_cat).
std::vector<std::byte> lv_cat(std::initializer_list<std::span<const std::byte>> parts);

}  // namespace bimetal::net::cpace
