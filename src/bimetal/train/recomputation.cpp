#include "bimetal/train/recomputation.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "bimetal/base/error.h"

namespace bimetal::train {

std::size_t recomputed_at_once(const std::string& configured, std::size_t units) {
  if (configured == "none" || configured == "auto") return 0;
  if (configured == "all") return 1;
  if (configured == "sqrt") {
    return static_cast<std::size_t>(std::lround(std::sqrt(static_cast<double>(units))));
  }
  std::size_t number = 0;
  const auto* const end = configured.data() + configured.size();
  const auto [rest, error] = std::from_chars(configured.data(), end, number);
  if (error == std::errc() && rest == end && number > 0) return number;
  throw Error(ErrorCode::InvalidArgument,
              fmt::format("recompute is \"{}\": take \"none\", \"all\", \"sqrt\", \"auto\", or a "
                          "number of units of at least 1",
                          configured));
}

}  // namespace bimetal::train
