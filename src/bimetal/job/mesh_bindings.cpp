// Kinds of values of [mesh].
#include <fmt/format.h>

#include <optional>
#include <string>

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

}  // namespace bimetal::job
