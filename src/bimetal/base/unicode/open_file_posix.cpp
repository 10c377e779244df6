#include <cstdlib>

#include "bimetal/base/unicode/open_file.h"

namespace bimetal {

std::FILE* open_file(const std::filesystem::path& path, const char* mode) {
  return std::fopen(path.c_str(), mode);
}

std::filesystem::path path_in_environment(const char* variable) {
  const char* const value = std::getenv(variable);
  return value ? value : "";
}

}  // namespace bimetal
