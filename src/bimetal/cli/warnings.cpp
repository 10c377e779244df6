#include "bimetal/cli/warnings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "bimetal/base/log.h"
#include "bimetal/cli/terminal.h"

namespace bimetal::cli {

void show_warnings() {
  const char* rank = std::getenv("RANK");
  const std::string who = rank ? fmt::format("bimetal: rank {}", rank) : "bimetal";
  set_log_sink(
      [who](LogLevel level, std::string_view message) {
        print_to_errors(fmt::format("{}: {}: {}", who, to_string(level), message));
      },
      std::min(log_level_from_environment().value_or(LogLevel::warning), LogLevel::warning));
}

}  // namespace bimetal::cli
