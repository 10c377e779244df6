// Kinds of values that are one word, one number or a list of them.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/job/job_keys.h"

namespace bimetal::job {
namespace {

/// Takes what `one` takes, or an array of numbers of at least 1, one for each stage. `taken` is
/// then called.
Binding or_by_stage(const Binding& one, std::vector<std::int64_t>& several,
                    std::function<void()> taken) {
  const auto read = [&several, taken = std::move(taken),
                     other = one.read](const toml::node& node) -> std::optional<std::string> {
    const auto* array = node.as_array();
    if (!array) {
      several.clear();
      return other(node);
    }
    std::vector<std::int64_t> numbers;
    for (const toml::node& element : *array) {
      const auto* number = element.as_integer();
      if (!number || number->get() < 1) {
        return "expected a whole number, or an array of whole numbers of at least 1 like [1, 2]";
      }
      if (number->get() > kMostRanks) {
        return fmt::format("expected numbers of at most {}, found {}", kMostRanks, number->get());
      }
      numbers.push_back(number->get());
    }
    several = std::move(numbers);
    taken();
    return std::nullopt;
  };
  return {read, [&several, write = one.write] {
            return several.empty() ? write() : fmt::format("[{}]", fmt::join(several, ", "));
          }};
}

}  // namespace

Binding count_or_auto(std::int64_t& to, std::int64_t automatic, std::int64_t least) {
  auto count = whole(to, least, kMostRanks);
  const auto read = [&to, automatic, least,
                     count = count.read](const toml::node& node) -> std::optional<std::string> {
    const auto* word = node.as_string();
    if (!word) return count(node);
    if (word->get() != "auto") {
      return fmt::format("expected \"auto\" or a whole number of at least {}, found {}", least,
                         toml_string(word->get()));
    }
    to = automatic;
    return std::nullopt;
  };
  return {read, [&to, automatic, write = count.write] {
            return to == automatic ? toml_string("auto") : write();
          }};
}

Binding mesh_replicas(MeshConfig& to) {
  return or_by_stage(count_or_auto(to.replicas, kAutoReplicas, 0), to.stage_replicas,
                     [&to] { to.replicas = kAutoReplicas; });
}

Binding mesh_tensor(MeshConfig& to) {
  return or_by_stage(count_or_auto(to.tensor, kAutoTensor), to.stage_tensor, [&to] {
    to.tensor = to.stage_tensor.empty() ? 1 : std::ranges::max(to.stage_tensor);
  });
}

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
