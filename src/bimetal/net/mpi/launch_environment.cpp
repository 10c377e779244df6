#include "bimetal/net/mpi/launch_environment.h"

#include <charconv>
#include <cstdlib>

namespace bimetal::net::mpi {
namespace {

std::optional<int> count_in(const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  int value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  const bool whole = error == std::errc() && end == text->data() + text->size();
  return whole && value > 0 ? std::optional(value) : std::nullopt;
}

}  // namespace

std::optional<LaunchEnvironment> launch_environment(const Variables& variables) {
  if (const auto size = count_in(variables("OMPI_COMM_WORLD_SIZE"))) {
    return LaunchEnvironment{Family::open_mpi, size};
  }
  if (const auto size = count_in(variables("PMI_SIZE"))) {
    return LaunchEnvironment{Family::mpich, size};
  }
  // Slurm's PMIx serves both families, and counts its tasks in a variable of its own.
  if (variables("PMIX_RANK")) {
    return LaunchEnvironment{Family::unknown, count_in(variables("SLURM_STEP_NUM_TASKS"))};
  }
  return std::nullopt;
}

std::optional<LaunchEnvironment> launch_environment() {
  return launch_environment([](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value ? std::optional<std::string>(value) : std::nullopt;
  });
}

}  // namespace bimetal::net::mpi
