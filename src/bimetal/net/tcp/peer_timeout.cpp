#include "bimetal/net/tcp/peer_timeout.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "bimetal/base/error.h"

namespace bimetal::net {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kOnHost{1000};
constexpr milliseconds kBetweenHosts{10'000};
constexpr double kMostSeconds = 1e6;

}  // namespace

std::optional<milliseconds> peer_timeout_from_environment() {
  const char* const variable = std::getenv("BIMETAL_PEER_TIMEOUT_S");
  const std::string text = variable ? variable : "";
  if (text.empty()) return std::nullopt;
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  if (*end != '\0' || !(seconds >= 0.001 && seconds <= kMostSeconds)) {
    throw Error(ErrorCode::InvalidArgument,
                fmt::format("BIMETAL_PEER_TIMEOUT_S is '{}'; it must be a number of seconds "
                            "greater than 0, such as 30",
                            text));
  }
  return milliseconds(static_cast<std::int64_t>(1000 * seconds));
}

milliseconds peer_timeout_for(std::optional<milliseconds> asked, bool stays_on_host) {
  return asked.value_or(stays_on_host ? kOnHost : kBetweenHosts);
}

}  // namespace bimetal::net
