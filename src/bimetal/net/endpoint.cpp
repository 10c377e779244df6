#include "bimetal/net/endpoint.h"

#include <fmt/format.h>

#include <asio.hpp>
#include <asio/ip/address.hpp>
#include <charconv>

#include "bimetal/base/error.h"

namespace bimetal::net {
namespace {

[[noreturn]] void fail(std::string_view text, std::string_view why) {
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("\"{}\" is not HOST:PORT: {}; write for example 10.0.0.2:29500, "
                          "mac.local:29500 or [fd00::2]:29500",
                          text, why));
}

/// Cuts `text` into the part that names the host (brackets removed) and the part after the colon.
std::pair<std::string_view, std::string_view> split(std::string_view text) {
  if (text.starts_with('[')) {
    const auto end = text.find(']');
    if (end == std::string_view::npos) fail(text, "the bracket is not closed");
    const auto rest = text.substr(end + 1);
    if (!rest.starts_with(':')) fail(text, "a colon and the port must follow the bracket");
    return {text.substr(1, end - 1), rest.substr(1)};
  }
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos) fail(text, "the port is missing");
  const auto host = text.substr(0, colon);
  if (host.find(':') != std::string_view::npos) fail(text, "IPv6 addresses need brackets");
  return {host, text.substr(colon + 1)};
}

}  // namespace

Endpoint parse_endpoint(std::string_view text) {
  const auto [host, port_text] = split(text);
  if (host.empty()) fail(text, "the host is missing");
  if (host.find_first_of(" \t\r\n[]") != std::string_view::npos) {
    fail(text, "the host has a character that no host name has");
  }
  if (port_text.empty()) fail(text, "the port is missing");
  std::uint16_t port = 0;
  const auto* const end = port_text.data() + port_text.size();
  const auto [stop, error] = std::from_chars(port_text.data(), end, port);
  if (error != std::errc() || stop != end) fail(text, "the port must be a number from 0 to 65535");
  return {std::string(host), port};
}

std::string to_string(const Endpoint& endpoint) {
  const bool brackets = endpoint.host.find(':') != std::string::npos;
  return brackets ? fmt::format("[{}]:{}", endpoint.host, endpoint.port)
                  : fmt::format("{}:{}", endpoint.host, endpoint.port);
}

std::string to_string(std::span<const Endpoint> endpoints) {
  std::string all;
  for (const Endpoint& endpoint : endpoints) {
    all += (all.empty() ? "" : ", ") + to_string(endpoint);
  }
  return all;
}

bool is_loopback(std::string_view host) {
  if (host == "localhost") return true;
  std::error_code error;
  const auto address = asio::ip::make_address(std::string(host), error);
  if (error) return false;
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).is_loopback();
  }
  return address.is_loopback();
}

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
