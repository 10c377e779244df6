#include "bimetal/comm/algorithm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "bimetal/base/error.h"

namespace bimetal::comm {
namespace {

constexpr Algorithm kAll[] = {Algorithm::automatic,
                              Algorithm::recursive_doubling,
                              Algorithm::halving_doubling,
                              Algorithm::ring,
                              Algorithm::tree,
                              Algorithm::two_level,
                              Algorithm::weighted};

}  // namespace

std::string_view to_string(Algorithm algorithm) noexcept {
  switch (algorithm) {
    case Algorithm::automatic: return "auto";
    case Algorithm::recursive_doubling: return "recursive_doubling";
    case Algorithm::halving_doubling: return "halving_doubling";
    case Algorithm::ring: return "ring";
    case Algorithm::tree: return "tree";
    case Algorithm::two_level: return "two_level";
    case Algorithm::weighted: return "weighted";
  }
  return "unknown algorithm";
}

Algorithm algorithm_for(Algorithm asked) {
  const char* variable = std::getenv("BIMETAL_ALGORITHM");
  if (asked != Algorithm::automatic || variable == nullptr || *variable == '\0') return asked;
  const auto found = std::ranges::find(kAll, std::string_view(variable), to_string);
  if (found != std::end(kAll)) return *found;
  std::string names;
  for (const auto algorithm : kAll) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", to_string(algorithm));
  }
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("BIMETAL_ALGORITHM={} is none of {}", variable, names));
}

}  // namespace bimetal::comm
