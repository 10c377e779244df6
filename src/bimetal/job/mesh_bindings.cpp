// Kinds of values of [mesh].
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bimetal/job/job_bindings.h"

namespace bimetal::job {

Binding count_or_auto(std::int64_t& to, std::int64_t automatic) {
  auto count = whole(to, 1);
  const auto read = [&to, automatic,
                     count = count.read](const toml::node& node) -> std::optional<std::string> {
    const auto* word = node.as_string();
    if (!word) return count(node);
    if (word->get() != "auto") {
      return fmt::format("expected \"auto\" or a whole number of at least 1, found {}",
                         toml_string(word->get()));
    }
    to = automatic;
    return std::nullopt;
  };
  return {read, [&to, automatic, write = count.write] {
            return to == automatic ? toml_string("auto") : write();
          }};
}

Binding count_or_counts(std::int64_t& to, std::vector<std::int64_t>& several) {
  auto count = whole(to, 0);
  const auto read = [&to, &several,
                     count = count.read](const toml::node& node) -> std::optional<std::string> {
    const auto* array = node.as_array();
    if (!array) {
      several.clear();
      return count(node);
    }
    std::vector<std::int64_t> numbers;
    for (const toml::node& element : *array) {
      const auto* number = element.as_integer();
      if (!number || number->get() < 1) {
        return "expected a whole number, or an array of whole numbers of at least 1 like [1, 2]";
      }
      numbers.push_back(number->get());
    }
    to = 0;
    several = std::move(numbers);
    return std::nullopt;
  };
  return {read, [&several, write = count.write] {
            return several.empty() ? write() : fmt::format("[{}]", fmt::join(several, ", "));
          }};
}

}  // namespace bimetal::job
