#include <CLI/CLI.hpp>

#include "bimetal/cli/fabric/launch.h"

namespace bimetal::cli {
namespace {

/// Whether the word after this one is the option's, too.
bool takes_next(const CLI::App& launch, const std::string& word) {
  const bool is_long = word.starts_with("--");
  if (is_long ? word.find('=') != std::string::npos : word.size() > 2) return false;
  const auto* option = launch.get_option_no_throw(word);
  return option && option->get_items_expected_max() > 0;
}

}  // namespace

std::vector<std::string> with_command_apart(const CLI::App& app, std::vector<std::string> words) {
  if (words.empty() || words.front() != "launch") return words;
  const auto& launch = *app.get_subcommand("launch");
  for (std::size_t at = 1; at < words.size(); ++at) {
    if (words[at] == "--") break;
    if (words[at].starts_with('-')) {
      at += takes_next(launch, words[at]);
    } else {
      words.insert(words.begin() + static_cast<std::ptrdiff_t>(at), "--");
      break;
    }
  }
  return words;
}

}  // namespace bimetal::cli
