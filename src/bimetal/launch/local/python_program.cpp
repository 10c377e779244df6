#include "bimetal/launch/local/python_program.h"

#include <cstdlib>
#include <filesystem>

#include "bimetal/launch/local/process.h"

namespace bimetal::launch {

std::string python_program() {
  if (const char* named = std::getenv("BIMETAL_PYTHON"); named && *named) return named;
  const auto build = own_program().parent_path();
  const auto own = build.parent_path() / ".venv" / "bin" / "python";
  return std::filesystem::exists(own) ? own.string() : "python3";
}

}  // namespace bimetal::launch
