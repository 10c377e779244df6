#include "bimetal/net/silence.h"

#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "bimetal/base/deadline.h"
#include "bimetal/base/error.h"

namespace bimetal::net {
namespace {

constexpr std::chrono::milliseconds kValid{2000};

struct SilentPeers {
  struct Noted {
    std::chrono::milliseconds so_far{0};
    Deadline until = Deadline::after(kValid);
  };
  std::mutex mutex;
  std::map<int, Noted> by_peer;
};

SilentPeers& silent_peers() {
  static auto* const all = new SilentPeers;  // threads of connections may outlive main()
  return *all;
}

using std::chrono::milliseconds;

constexpr milliseconds kOnHost{1000};
constexpr milliseconds kBetweenHosts{10'000};
constexpr double kMostSeconds = 1e6;

}  // namespace

void note_silence(int peer, std::chrono::milliseconds so_far) {
  auto& all = silent_peers();
  const std::scoped_lock lock(all.mutex);
  if (so_far < kLongSilence) {
    all.by_peer.erase(peer);
  } else {
    all.by_peer[peer] = {.so_far = so_far};
  }
}

std::optional<std::chrono::milliseconds> silence_of(int peer) {
  auto& all = silent_peers();
  const std::scoped_lock lock(all.mutex);
  const auto found = all.by_peer.find(peer);
  if (found == all.by_peer.end() || found->second.until.expired()) return std::nullopt;
  return found->second.so_far;
}

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
