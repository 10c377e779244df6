#pragma once
// What a store's client and server say to each other after the handshake: one message layout for
// requests and replies, a 48-byte header and then key and value. docs/protocol.md describes it.

#include <array>
#include <asio/awaitable.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "bimetal/net/frame.h"
#include "bimetal/net/tcp/byte_stream.h"

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

StoreHeader encode_store_header(const StoreMessage& message, const net::SessionKey& key);

/// Reads one message. Throws Error(CorruptData) for bytes that fail the checks (before anything is
/// allocated by their lengths), std::system_error when the connection ends.
asio::awaitable<StoreMessage> read_store_message(net::ByteReader& reader,
                                                 const net::SessionKey& key);

}  // namespace bimetal::rendezvous
