#include "bimetal/net/silent_peers.h"

#include <map>
#include <mutex>

#include "bimetal/base/deadline.h"

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

}  // namespace bimetal::net
