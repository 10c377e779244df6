#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "bimetal/job/job_bindings.h"

namespace bimetal::job {

Binding names_or_word(std::vector<std::string>& to, std::vector<std::string> names,
                      std::string word) {
  const auto expected =
      fmt::format("\"{}\" or an array of \"{}\"", word, fmt::join(names, "\", \""));
  const auto unexpected = [expected](const toml::node& node) {
    return fmt::format("expected {}, found {}", expected, type_name(node));
  };
  const auto read = [&to, names = std::move(names), word, expected,
                     unexpected](const toml::node& node) -> std::optional<std::string> {
    if (const auto* value = node.as_string(); value && value->get() == word) {
      to = {word};
      return std::nullopt;
    }
    const auto* array = node.as_array();
    if (!array) return unexpected(node);
    std::vector<std::string> chosen;
    for (const toml::node& element : *array) {
      const auto* name = element.as_string();
      if (!name) return unexpected(element) + " in it";
      if (std::ranges::find(names, name->get()) == names.end()) {
        return fmt::format("expected {}, found {} in it", expected, toml_string(name->get()));
      }
      if (std::ranges::find(chosen, name->get()) != chosen.end()) {
        return fmt::format("expected each name once, found {} twice", toml_string(name->get()));
      }
      chosen.push_back(name->get());
    }
    to = std::move(chosen);
    return std::nullopt;
  };
  const auto write = [&to, word] {
    if (to == std::vector{word}) return toml_string(word);
    std::vector<std::string> parts;
    for (const auto& name : to) parts.push_back(toml_string(name));
    return fmt::format("[{}]", fmt::join(parts, ", "));
  };
  return {read, write};
}

}  // namespace bimetal::job
