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
    case Transport::mpi: return "mpi";
  }
  return "unknown transport";
}

Transport transport_for(Transport asked) {
  const char* variable = std::getenv("BIMETAL_TRANSPORT");
  if (asked != Transport::automatic || !variable || !*variable) return asked;
  return transport_of(variable, "BIMETAL_TRANSPORT");
}

Transport transport_of(std::string_view name, std::string_view where) {
  for (const auto transport :
       {Transport::automatic, Transport::tcp, Transport::shm, Transport::mpi}) {
    if (name == to_string(transport)) return transport;
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("{} is '{}'; it must be auto, tcp, shm or mpi", where, name));
}

std::string island_for(std::string asked) {
  const char* variable = std::getenv("BIMETAL_ISLAND");
  return asked.empty() && variable ? variable : asked;
}

}  // namespace bimetal::comm
