#include "bimetal/parallel/server/join_check.h"

#include <fmt/format.h>

#include <algorithm>

namespace bimetal::parallel::server {
namespace {

std::string name_of(const Join& join) {
  return fmt::format("the {} on {}", to_string(join.role), join.host);
}

}  // namespace

void require_same_release(const Join& join, const std::string& own) {
  if (join.release == own) return;
  throw Error(
      ErrorCode::ProtocolMismatch,
      fmt::format("{} runs Bimetal {} and the servers {}; install the same version on every "
                  "machine",
                  name_of(join), join.release, own));
}

void require_same_facts(const Join& join, const std::vector<std::string>& own) {
  const auto count = std::min(join.facts.size(), own.size());
  for (std::size_t i = 0; i < count; ++i) {
    if (join.facts[i] == own[i]) continue;
    throw Error(ErrorCode::CallMismatch,
                fmt::format("{} has '{}' where the servers have '{}': give every process the same "
                            "job, model and data",
                            name_of(join), join.facts[i], own[i]));
  }
  if (join.facts.size() == own.size()) return;
  throw Error(ErrorCode::CallMismatch,
              fmt::format("{} has another model: {} tensors and settings, the servers {}",
                          name_of(join), join.facts.size(), own.size()));
}

}  // namespace bimetal::parallel::server
