#include "bimetal/base/console.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "bimetal/base/os_files.h"

namespace bimetal {
namespace {

/// Of Open MPI, of MPICH and its relatives, and of what starts processes by PMIx.
constexpr const char* kOfMpirun[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"};

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

}  // namespace

bool is_capable_terminal(int descriptor) {
  const char* kind = std::getenv("TERM");
  return kind != nullptr && *kind != '\0' && std::string_view(kind) != "dumb" &&
         is_terminal(descriptor);
}

bool may_rewrite(int descriptor) {
  return is_capable_terminal(descriptor) && !is_set("NO_COLOR") &&
         std::ranges::none_of(kOfMpirun, is_set);
}

}  // namespace bimetal
