#pragma once
// Reads the store's messages (store_message.h) from a connection.

#include <asio/awaitable.hpp>

#include "bimetal/net/tcp/byte_stream.h"
#include "bimetal/rendezvous/store_message.h"

namespace bimetal::rendezvous {

/// Reads one message. Throws Error(CorruptData) for bytes that fail the checks (before anything is
/// allocated by their lengths), std::system_error when the connection ends.
asio::awaitable<StoreMessage> read_store_message(net::ByteReader& reader, net::Seal& seal);

}  // namespace bimetal::rendezvous
