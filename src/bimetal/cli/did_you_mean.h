#pragma once
// What a mistyped command or option most likely means.

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

namespace bimetal::cli {

/// "did you mean `bimetal train`?" of `words`, which `app` could not parse; nothing where they hold
/// no unknown command and no unknown long option.
std::optional<std::string> meant_instead(const CLI::App& app,
                                         const std::vector<std::string>& words);

}  // namespace bimetal::cli
