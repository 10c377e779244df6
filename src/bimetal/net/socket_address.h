#pragma once
// Addresses in the form of the system's calls.

#include <asio/ip/address.hpp>
#include <asio/ip/tcp.hpp>  // and with it the system's own headers of sockets
#include <optional>

namespace bimetal::net {

/// The IP address in `from`, which is as long as its family says; none of any other family.
std::optional<asio::ip::address> address_in(const sockaddr& from);

}  // namespace bimetal::net
