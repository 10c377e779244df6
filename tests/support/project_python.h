#pragma once
// A Python that has the packages by which a test reads back our files.

#include <cstdlib>
#include <string>

namespace bimetal::test {

/// The project's own Python if it has all of `packages` ("numpy, safetensors"), else the system's
/// if that has; empty where neither does.
inline std::string python_with(const std::string& packages) {
  const std::string own = BIMETAL_SOURCE_DIR "/.venv/bin/python";
  for (const std::string& candidate : {own, std::string("python3")}) {
    const auto check = candidate + " -c 'import " + packages + "' 2>/dev/null";
    if (std::system(check.c_str()) == 0) return candidate;
  }
  return "";
}

}  // namespace bimetal::test
