#include "bimetal/comm/transport.h"

#include <fmt/format.h>

#include <cstdlib>

#include "bimetal/base/error.h"

namespace bimetal::comm {

std::string_view to_string(Transport transport) noexcept {
  switch (transport) {
    case Transport::automatic: return "auto";
    case Transport::tcp: return "tcp";
    case Transport::shm: return "shm";
  }
  return "unknown transport";
}

Transport transport_for(Transport asked) {
  const char* variable = std::getenv("BIMETAL_TRANSPORT");
  if (asked != Transport::automatic || !variable || !*variable) return asked;
  for (const auto transport : {Transport::automatic, Transport::tcp, Transport::shm}) {
    if (variable == to_string(transport)) return transport;
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("BIMETAL_TRANSPORT is '{}'; it must be auto, tcp or shm", variable));
}

}  // namespace bimetal::comm
