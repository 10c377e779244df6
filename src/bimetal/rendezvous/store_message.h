#pragma once
// The messages of a store's client and server after the handshake: one message layout for requests
// and replies, a 48-byte header and then key and value. docs/protocol.md describes it.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "bimetal/net/frame.h"

namespace bimetal::rendezvous {

inline constexpr std::uint32_t kStoreMagic = 0x54534d42;  // "BMST"
inline constexpr std::size_t kStoreHeaderBytes = 48;
inline constexpr std::size_t kMaxKeyBytes = 1024;
inline constexpr std::size_t kMaxValueBytes = 16 << 20;

enum class StoreCall : std::uint8_t {
  Set = 1,
  Get = 2,     ///< answered once the key exists
  TryGet = 3,  ///< answered at once, perhaps with Absent
  Add = 4,
  Cancel = 5,  ///< the Get of the same request number is not waited for any more; not answered
  Reply = 6,
};

enum class StoreStatus : std::uint8_t {
  Ok = 0,
  Absent = 1,      ///< TryGet: no such key
  NotANumber = 2,  ///< Add: the key holds something that is no counter
  TooMany = 3,     ///< Get: this client waits for too many keys already
};

struct StoreMessage {
  StoreCall call = StoreCall::Reply;
  StoreStatus status = StoreStatus::Ok;
  std::uint64_t request = 0;  ///< chosen by the client, growing; the reply carries the same
  std::int64_t number = 0;    ///< Add: what to add; its reply: the sum
  std::string key;
  /// Shared, so that a value on its way to many clients is kept once. Never null.
  std::shared_ptr<const std::string> value = empty_value();

  static const std::shared_ptr<const std::string>& empty_value();
};

using StoreHeader = std::array<std::byte, kStoreHeaderBytes>;

/// The next message that goes this way.
StoreHeader encode_store_header(const StoreMessage& message, net::Seal& seal);

/// A header that has passed its checks; key and value follow it on the wire.
struct StoreHeaderFields {
  StoreMessage message;  ///< without key and value
  std::uint32_t key_bytes = 0;
  std::uint32_t value_bytes = 0;
  std::uint64_t body_sum = 0;
};

/// The next message that has come this way. Throws Error(CorruptData) for a wrong magic or checksum
/// (or another message than the one sent next), or lengths beyond the limits.
StoreHeaderFields decode_store_header(const StoreHeader& bytes, net::Seal& seal);

/// Throws Error(CorruptData) where key and value are not those that the header was made for.
StoreMessage complete_store_message(StoreHeaderFields fields, std::string key, std::string value,
                                    const net::Seal& seal);

}  // namespace bimetal::rendezvous
