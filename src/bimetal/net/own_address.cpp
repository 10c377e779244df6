#include "bimetal/net/own_address.h"

#include <fmt/format.h>

#include <asio.hpp>

#include "bimetal/base/error.h"

namespace bimetal::net {

std::string address_towards(const Endpoint& peer) {
  using asio::ip::udp;
  asio::io_context context;
  std::error_code error;
  const auto found = udp::resolver(context).resolve(peer.host, std::to_string(peer.port), error);
  for (const auto& entry : found) {
    udp::socket socket(context);
    // Connecting a datagram socket chooses the route and the source address without a packet.
    socket.connect(entry.endpoint(), error);
    if (!error) return socket.local_endpoint().address().to_string();
  }
  throw Error(ErrorCode::System, fmt::format("no network leads to {}: {}; check the name",
                                             to_string(peer), error.message()));
}

std::string reachable_address(const std::string& host) {
  if (host != "0.0.0.0" && host != "::" && !host.empty()) return host;
  try {
    // Any address beyond the machine shows the default route; this one is reserved for
    // documentation (RFC 5737) and belongs to nobody.
    return address_towards({"192.0.2.1", 9});
  } catch (const Error&) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("cannot tell by which address other machines reach this one; give it "
                            "in place of {}",
                            host));
  }
}

}  // namespace bimetal::net
