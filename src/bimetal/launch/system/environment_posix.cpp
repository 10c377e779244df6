#include <stdlib.h>

#include <string_view>

#include "bimetal/launch/system/environment.h"

extern char** environ;

namespace bimetal::launch {

NamedValues own_environment() {
  NamedValues variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    variables.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

std::optional<std::string> environment_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

void set_environment_variable(const std::string& name, const std::string& value) {
  ::setenv(name.c_str(), value.c_str(), 1);
}

std::optional<std::string> home_folder() {
  return environment_variable("HOME");
}

}  // namespace bimetal::launch
