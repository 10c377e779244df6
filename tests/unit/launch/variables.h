#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "bimetal/base/error.h"
#include "support/errors.h"

namespace bimetal::launch {

/// VariableMap of an environment, in place of the process's own.
using VariableMap = std::map<std::string, std::string>;

inline auto lookup_in(const VariableMap& variables) {
  return [&variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

inline VariableMap with(VariableMap variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

inline VariableMap without(VariableMap variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

/// The text of the error that `read` ends in.
template <typename Read>
std::string complaint_of(const Read& read) {
  return text_of(ErrorCode::InvalidArgument, read);
}

}  // namespace bimetal::launch
