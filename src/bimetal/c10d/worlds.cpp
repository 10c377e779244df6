#include "bimetal/c10d/worlds.h"

#include <algorithm>
#include <mutex>

#include "bimetal/c10d/backend.h"

namespace bimetal::c10d::worlds {
namespace {

struct Register {
  std::mutex mutex;
  std::vector<BimetalBackend*> living;
};

// Never destroyed: backends may be dropped by whatever is destroyed last.
Register& the_register() {
  static auto* const made = new Register;
  return *made;
}

}  // namespace

void add(BimetalBackend* backend) {
  auto& all = the_register();
  std::lock_guard lock(all.mutex);
  all.living.push_back(backend);
}

void remove(BimetalBackend* backend) {
  auto& all = the_register();
  std::lock_guard lock(all.mutex);
  std::erase(all.living, backend);
}

std::optional<comm::Group> find(int rank, const std::vector<std::uint64_t>& global_ranks) {
  auto& all = the_register();
  std::lock_guard lock(all.mutex);
  // The newest first: an old one may be on its way out.
  for (auto at = all.living.rbegin(); at != all.living.rend(); ++at) {
    const BimetalBackend& backend = **at;
    const auto size = static_cast<std::uint64_t>(backend.getSize());
    const bool is_default = backend.options().global_ranks_in_group.empty();
    if (is_default && backend.getRank() == rank &&
        std::ranges::all_of(global_ranks, [&](auto global) { return global < size; })) {
      return backend.group();
    }
  }
  return std::nullopt;
}

void close_all(Deadline deadline) {
  std::vector<GroupCalls> groups;
  {
    auto& all = the_register();
    std::lock_guard lock(all.mutex);
    for (const auto* backend : all.living) groups.push_back(backend->calls());
  }
  for (auto& group : groups) group.close(deadline);
}

}  // namespace bimetal::c10d::worlds
