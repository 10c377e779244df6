#pragma once
// This process's environment variables, in UTF-8 on every system. Not thread-safe, as the
// environment itself.

#include <optional>
#include <string>

#include "bimetal/launch/rank_variables.h"

namespace bimetal::launch {

/// All of them. On Windows without those of a drive's folder, whose names begin with "=".
NamedValues own_environment();

std::optional<std::string> environment_variable(const std::string& name);

void set_environment_variable(const std::string& name, const std::string& value);

/// Leaves a value that is there.
inline void default_environment_variable(const std::string& name, const std::string& value) {
  if (!environment_variable(name)) set_environment_variable(name, value);
}

/// Folder of the user's own files, if the environment names it.
std::optional<std::string> home_folder();

}  // namespace bimetal::launch
