#include "bimetal/rendezvous/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "bimetal/base/error.h"

namespace bimetal::rendezvous {

std::string PolledStore::get(std::string_view key, Deadline deadline) {
  using std::chrono::milliseconds;
  constexpr milliseconds kLongestPause{20};
  for (milliseconds pause{1};; pause = std::min(2 * pause, kLongestPause)) {
    if (auto value = try_get(key, deadline)) return *value;
    if (deadline.expired()) {
      throw Error(ErrorCode::Timeout, fmt::format("nobody set '{}' in {}", key, name_));
    }
    std::this_thread::sleep_for(std::min<Deadline::Clock::duration>(pause, deadline.remaining()));
  }
}

}  // namespace bimetal::rendezvous
