#include <cstdlib>

#include "bimetal/base/unicode/open_file.h"
#include "bimetal/base/unicode/windows_text.h"

namespace bimetal {

std::FILE* open_file(const std::filesystem::path& path, const char* mode) {
  return _wfopen(path.c_str(), wide_of_utf8(mode).c_str());
}

std::filesystem::path path_in_environment(const char* variable) {
  const wchar_t* const value = _wgetenv(wide_of_utf8(variable).c_str());
  return value ? value : L"";
}

}  // namespace bimetal
