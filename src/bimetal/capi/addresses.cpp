// What this machine is reached by, and what lets others in.

#include <fmt/format.h>

#include <optional>

#include "bimetal/capi/boundary.h"
#include "bimetal/comm/meet/meet.h"
#include "bimetal/net/advertise.h"
#include "bimetal/net/endpoint.h"
#include "bimetal/net/token.h"

using namespace bimetal;

extern "C" {

std::int32_t bimetal_address(const char* server, const char** address) {
  return capi::guarded([&] {
    std::optional<net::Endpoint> endpoint;
    if (server != nullptr) endpoint = net::parse_endpoint(server);
    *address = capi::keep_text(comm::address_for_meeting(endpoint)).c_str();
  });
}

std::int32_t bimetal_token(const char** token) {
  return capi::guarded(
      [&] { *token = capi::keep_text(std::string(net::Token::generate().text())).c_str(); });
}

std::int32_t bimetal_own_addresses(const char** lines) {
  return capi::guarded([&] {
    std::string text;
    for (const auto& own : net::own_addresses()) {
      text += fmt::format("{} {}\n", own.address.to_string(), own.name);
    }
    *lines = capi::keep_text(std::move(text)).c_str();
  });
}

}  // extern "C"
