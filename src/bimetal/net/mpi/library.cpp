#include "bimetal/net/mpi/library.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "bimetal/base/log.h"
#include "bimetal/net/mpi/bindings.h"

namespace bimetal::net::mpi {
namespace {

constexpr const char* kVariable = "BIMETAL_MPI_LIBRARY";

// The numbers are those of the binary interface: 40 is Open MPI's since version 4, 12 that of MPICH
// and its kin since version 3.1.
#ifdef __APPLE__
constexpr std::array kOpenMpiNames{"libmpi.40.dylib"};
constexpr std::array kMpichNames{"libmpi.12.dylib", "libmpich.12.dylib"};
constexpr std::array kOtherNames{"libmpi.dylib", "libmpich.dylib"};
#else
constexpr std::array kOpenMpiNames{"libmpi.so.40"};
constexpr std::array kMpichNames{"libmpi.so.12", "libmpich.so.12"};
constexpr std::array kOtherNames{"libmpi.so", "libmpich.so"};
#endif

std::vector<std::string> names_to_try(Family family) {
  std::vector<std::string> names;
  if (family != Family::mpich)
    names.insert(names.end(), kOpenMpiNames.begin(), kOpenMpiNames.end());
  if (family != Family::open_mpi) names.insert(names.end(), kMpichNames.begin(), kMpichNames.end());
  names.insert(names.end(), kOtherNames.begin(), kOtherNames.end());
  return names;
}

bool speaks_as_mpich(std::string_view version) {
  for (const std::string_view kin : {"MPICH", "Intel(R) MPI", "MVAPICH", "CRAY"}) {
    if (version.find(kin) != std::string_view::npos) return true;
  }
  return false;
}

std::unique_ptr<Library> open(const std::string& name, Family family) {
  DynamicLibrary library(name);
  const bool open_mpi = OpenMpiAbi::fits(library);
  if (family == (open_mpi ? Family::mpich : Family::open_mpi)) {
    throw Error(ErrorCode::Unsupported, fmt::format("{}: this is {}, but mpirun is the other's",
                                                    name, open_mpi ? "Open MPI" : "no Open MPI"));
  }
  if (open_mpi) return std::make_unique<Bindings<OpenMpiAbi>>(std::move(library));
  auto bound = std::make_unique<Bindings<MpichAbi>>(std::move(library));
  if (speaks_as_mpich(bound->version())) return bound;
  throw Error(ErrorCode::Unsupported, fmt::format("{}: '{}' is neither Open MPI nor of MPICH's kin",
                                                  name, bound->version()));
}

}  // namespace

std::unique_ptr<Library> load_library() {
  if (!DynamicLibrary::supported()) {
    throw Error(ErrorCode::Unsupported,
                "transport 'mpi' has not been written for this operating system; use tcp");
  }
  const auto launched = launch_environment();
  const Family family = launched ? launched->family : Family::unknown;
  const char* const named = std::getenv(kVariable);
  const bool by_name = named != nullptr && *named != '\0';
  std::string tried;
  for (const auto& name : by_name ? std::vector<std::string>{named} : names_to_try(family)) {
    try {
      // A library that was named is believed. The number of ranks that it finds will show whether
      // it is right.
      auto library = open(name, by_name ? Family::unknown : family);
      log(LogLevel::info, "MPI: {}, from {}", library->version(), name);
      return library;
    } catch (const Error& error) {
      tried += fmt::format("{}[{}]", tried.empty() ? "" : " ", error.what());
    }
  }
  throw Error(ErrorCode::Unsupported,
              fmt::format("transport 'mpi' needs the library of Open MPI or MPICH, and none was "
                          "found: {}; install the one that your mpirun belongs to (Debian: "
                          "libopenmpi3 or libmpich12), or say where it is by {}",
                          tried, kVariable));
}

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
