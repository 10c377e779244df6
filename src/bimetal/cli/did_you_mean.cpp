#include "bimetal/cli/did_you_mean.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "bimetal/base/nearest_name.h"

namespace bimetal::cli {
namespace {

std::optional<std::string> meant(const std::string& word, const std::vector<std::string>& known) {
  if (known.empty() || std::ranges::find(known, word) != known.end()) return std::nullopt;
  const std::vector<std::string_view> names(known.begin(), known.end());
  return std::string(nearest_name(word, names));
}

/// Those that people are told of.
std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> long_options_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const auto* option : command.get_options()) {
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

}  // namespace

std::optional<std::string> meant_instead(const CLI::App& app,
                                         const std::vector<std::string>& words) {
  if (words.empty() || words.front().starts_with('-')) return std::nullopt;
  const auto found = app.get_subcommands(
      [&](const CLI::App* command) { return command->get_name() == words.front(); });
  if (found.empty()) {
    const auto name = meant(words.front(), commands_of(app));
    if (!name) return std::nullopt;
    return fmt::format("no command is called '{}': did you mean `bimetal {}`?", words.front(),
                       *name);
  }
  for (const auto& word : words) {
    if (word == "--") break;  // what follows is another program's
    const auto option = word.substr(0, word.find('='));
    if (!option.starts_with("--")) continue;
    if (const auto name = meant(option, long_options_of(*found.front()))) {
      return fmt::format("`bimetal {}` has no option {}: did you mean {}?", words.front(), option,
                         *name);
    }
  }
  return std::nullopt;
}

}  // namespace bimetal::cli
